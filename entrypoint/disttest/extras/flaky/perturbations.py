"""The table of perturbations."""

from __future__ import annotations

from collections.abc import Iterable

from disttest.extras.flaky.causes import Cause, Perturbation

PLAIN = ("--isolation", "fresh")
"""Options of runs without a perturbation: each repetition has new processes, as in a run of this test alone."""
WARM = ("--isolation", "warm", "--one-world")
AFTER = Perturbation(
    name="after others",
    cause=Cause.ORDER,
    help="after the other tests of its file, in one process",
    strengths=(WARM,),
)


def perturbations(processors: int, size: int, *, on_cpu: bool) -> tuple[Perturbation, ...]:
    """Return the perturbations of a test, in the order in which they are tried.

    Args:
        processors: number of processors here.
        size: number of ranks of the test.
        on_cpu: whether the test runs without a GPU.
    """
    # A world that is wider than the machine still needs one slot for each rank.
    slots = max(processors, size)
    rows = [
        AFTER,
        Perturbation(
            name="after itself", cause=Cause.ORDER, help="again in the same process", strengths=(WARM,)
        ),
        _row(
            "delay",
            Cause.TIMING,
            "one rank starts or returns from collectives up to so many seconds late",
            ("0.4", "0.2", "0.1", "0.05"),
        ),
        _row("threads", Cause.RESOURCES, "so many compute threads", ("1",)),
        _row("cpu", Cause.TIMING, "one processor, with so many busy processes", ("8", "4", "2", "1")),
    ]
    if on_cpu:  # a CUDA context alone needs more address space than any limit
        rows.append(_row("memory", Cause.RESOURCES, "so much memory for each process", ("2g", "4g", "8g")))
        rows.append(
            Perturbation(
                name="crowd",
                cause=Cause.MACHINE,
                help="several times as many worlds at a time",
                strengths=tuple(
                    (*PLAIN, "--slots", str(times * slots), "--perturb", "crowd") for times in (8, 4, 2)
                ),
            )
        )
    # On GPUs without room for two worlds, one at a time is the usual case already. A plain run on the CPU borrows
    # processors that worlds leave idle, so it may have several worlds at a time on any number. --slots ends that.
    if on_cpu or processors >= 2 * size:
        alone = (*PLAIN, "--slots", str(size))
        rows.append(
            Perturbation(
                name="alone", cause=Cause.MACHINE, help="one world at a time", strengths=(alone,), calms=True
            )
        )
    return tuple(rows)


def _row(name: str, cause: Cause, help_: str, strengths: Iterable[str]) -> Perturbation:
    words = tuple((*PLAIN, "--perturb", f"{name}:{strength}") for strength in strengths)
    return Perturbation(name=name, cause=cause, help=help_, strengths=words)
