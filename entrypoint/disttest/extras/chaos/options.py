"""Options of ``disttest chaos``, and the command line that repeats one fault."""

from __future__ import annotations

from collections.abc import Iterator

from disttest.extras.chaos.case import ChaosCase, FaultKind
from disttest.extras.chaos.limits import DELAY_S, GROUP_S
from disttest.options.option import rows_of
from disttest.options.values import COUNT, SECONDS, SWITCH, text

_chaos = rows_of("chaos")

OPTIONS = (
    _chaos(
        "fault",
        text("KIND:RANK:CALL[:during]"),
        "Try only this fault, such as kill:1:5.",
        many=True,
        inputs=(),
    ),
    _chaos(
        "kinds",
        text("KIND,…"),
        "Kinds of faults to inject.",
        default=tuple(FaultKind),
        otherwise=",".join(FaultKind),
        inputs=(),
    ),
    _chaos(
        "during", SWITCH, "Inject the fault while the call runs, not before it.", default=False, inputs=()
    ),
    _chaos("samples", COUNT, "Try N faults of each test, drawn with --seed.", otherwise="all", inputs=()),
    _chaos(
        "group-timeout",
        SECONDS,
        "Time limit of process groups in tests with a fault, unless theirs is shorter.",
        default=GROUP_S,
        inputs=(),
    ),
    _chaos("delay", SECONDS, "Delay of a late rank.", default=DELAY_S, inputs=()),
)


def options_of_fault(case: ChaosCase) -> Iterator[str]:
    """Yield the arguments with which ``disttest chaos`` tries this fault alone."""
    fault = case.fault
    if fault is None:
        return
    yield from ("--fault", str(fault))
    if case.limit_s != GROUP_S:
        yield from ("--group-timeout", f"{case.limit_s:g}")
    if case.delay_s != DELAY_S and fault.kind is FaultKind.DELAY:
        yield from ("--delay", f"{case.delay_s:g}")
