"""The fault matrix: which fault, in which phase, of which rank, in which kind of world, and what must come of it.

Shared by the suite that commits them (tests/fixtures/faulty_suites/matrix.py), the tests of the verdicts, the soak and
bench/faults.py.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import re
from collections.abc import Iterator, Mapping

from disttest.model import Cause, Outcome, TestResult

SIZE = 2
HANG_LIMIT_S = 1.5
"""Time limit of the cells that hang."""
CHOICE = "FAULT_CELLS"
"""Variable that chooses: ``reduced``, ``full``, or ids with commas between them."""
CULPRIT = -1
"""Stands for the rank of the cell."""

WORLDS = ("fresh", "warm")
KINDS = (*WORLDS, "torch")
PHASES = ("setup", "call", "teardown")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a cell must come to."""

    outcome: Outcome
    message: str = ""
    """A pattern; ``{K}`` is the rank, ``{PHASE}`` the phase, ``{IN}`` is `` in setup`` but empty for the call."""
    culprit: int | None = CULPRIT
    cause: Cause | None = Cause.TEST
    note: str = ""
    """A pattern for one of the result's notes."""


def died(how: str) -> Verdict:
    return Verdict(Outcome.ERROR, rf"rank {{K}} of 2 {how} in {{PHASE}}, before it reported")


def hangs(where: str) -> Verdict:
    return Verdict(Outcome.FAILED, rf".*rank {{K}} is {where}.*\(timed out after 1.5 s\)")


def passes(note: str = "") -> Verdict:
    return Verdict(Outcome.PASSED, "", culprit=None, cause=None, note=note)


RAISED = Verdict(Outcome.FAILED, r"rank {K} of 2 failed{IN}: RuntimeError: a planted fault")


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault and its consequences."""

    act: str
    """Expression over the names of faults.py."""
    verdict: Verdict
    kinds: tuple[str, ...] = KINDS
    phases: tuple[str, ...] = ("call",)
    slow: bool = False
    """Ends at the deadline of its test."""
    in_torch: Verdict | None = None
    """Where torch's class is judged otherwise."""


def crash(act: str, how: str) -> Fault:
    return Fault(act, died(how), phases=PHASES)


def hang(
    act: str, where: str, *, phases: tuple[str, ...] = ("call",), kinds: tuple[str, ...] = KINDS
) -> Fault:
    return Fault(act, hangs(where), kinds=kinds, phases=phases, slow=True)


def harmless(act: str, note: str = "", *, kinds: tuple[str, ...] = WORLDS) -> Fault:
    return Fault(act, passes(note), kinds=kinds)


_MALFORMED = r"rank {K} of 2 was given up in {PHASE}, before it reported: it sent a malformed message: "
_MAIN_DIED = Verdict(
    Outcome.ERROR, "the main process was killed by {SIGNAL} in call, before it reported", None
)


def _main_died(signal_name: str) -> Verdict:
    return dataclasses.replace(_MAIN_DIED, message=_MAIN_DIED.message.replace("{SIGNAL}", signal_name))


FAULTS: Mapping[str, Fault] = {
    "raise": Fault("raises", RAISED, phases=PHASES),
    "raise-10-mb": Fault("raises_a_novel", RAISED, kinds=WORLDS),
    **{f"exit-{code}": crash(f"leaves({code})", f"exited with code {code}") for code in (0, 1, 10, 72, 86)},
    **{
        name.lower(): crash(f"dies_of(signal.{name})", f"was killed by {name}")
        for name in ("SIGKILL", "SIGABRT")
    },
    "sigsegv": crash("segfaults", "was killed by SIGSEGV"),
    "killpg": crash("kills_its_process_group", "was killed by SIGKILL"),
    "sigstop": hang(
        "dies_of(signal.SIGSTOP)", r"stopped \(SIGSTOP, or a debugger\), in {PHASE}", phases=PHASES
    ),
    "hang": hang("hangs_in_python", r"in hangs_in_python at faults.py:\d+", phases=PHASES),
    "hang-gil": hang("hangs_with_the_gil_held", r"in hangs_with_the_gil_held at faults.py:\d+"),
    "hang-uninterruptible": hang(
        "hangs_uninterruptibly", r"in an uninterruptible sleep in the kernel \(.*\), in {PHASE}"
    ),
    "hang-ignores-sigterm": hang("hangs_deaf_to_sigterm", r"in hangs_deaf_to_sigterm at faults.py:\d+"),
    "hang-handlers": Fault(
        "hangs_after_it_replaced_all_signal_handlers",
        Verdict(Outcome.FAILED, r"(?=.*timed out after 1.5 s).*rank {K} (of 2|is) still in {PHASE}"),
        slow=True,
    ),
    **{
        f"hang-evidence-{name}": hang(
            f"hangs_without_real_time_signals(signal.{disposition})",
            r"without its handler of the signal that asks for stacks \(the test has reset it\), in {PHASE}",
        )
        for name, disposition in (("default", "SIG_DFL"), ("ignored", "SIG_IGN"))
    },
    "timer": harmless(
        "leaves_a_timer_that_ends_the_process", r"rank {K} leaked timer faulthandler\.dump_traceback_later"
    ),
    "handlers": harmless("replaces_all_signal_handlers", "rank {K} leaked signal SIGTERM: "),
    "daemon": harmless("forks_a_daemon", kinds=KINDS),
    "child": harmless("leaves_a_child_that_holds_all_descriptors", kinds=KINDS),
    "fork": harmless("forks_and_comes_back_twice"),
    "flood": harmless("floods", kinds=KINDS),
    "flood-journal": harmless(
        "leaks_thousands_of_variables", "rank {K} leaked environment LEAKED_0: unset became"
    ),
    "malformed": Fault("sends_malformed_messages", Verdict(Outcome.ERROR, _MALFORMED)),
    "malformed-cut": Fault(
        "announces_a_message_that_never_comes",
        Verdict(Outcome.ERROR, _MALFORMED + r"message cut after \d+ bytes"),
    ),
    "close-all": Fault(
        "closes_all_descriptors",
        Verdict(
            Outcome.ERROR,
            # Gloo's own thread may be the first to notice, and aborts.
            r"rank {K} of 2 was (given up|killed by SIGABRT) in {PHASE}, before it reported: (it closed its control "
            r"channel|gloo::EnforceNotMet)",
        ),
    ),
    "leak-shm": harmless("leaks_shared_memory", kinds=KINDS),
    "leak-socket": harmless("leaks_a_listening_socket"),
    "leak-directory": harmless("leaks_a_directory", kinds=KINDS),
    "leak-thread": harmless("leaks_a_thread", r"rank {K} leaked thread forgotten \(still there\)"),
    "leak-descriptors": harmless(
        "uses_up_all_descriptors", r"rank {K} leaked file descriptors: \d+ of 512 are open"
    ),
    "cwd": harmless("deletes_its_working_directory", "rank {K} leaked directory: "),
    "settrace": harmless("traces", "rank {K} leaked tracing function: "),
    "clock-stops": Fault("stops_the_clocks", RAISED, kinds=WORLDS),
    "clock-jumps": harmless("jumps_with_the_clock"),
    "sigterm-parent": Fault(
        "signals_its_parent(signal.SIGTERM)",
        Verdict(
            Outcome.ERROR,
            "rank {K} of 2 was given up in {PHASE}, before it reported: it sent SIGTERM to its parent, the world process",
        ),
        in_torch=_main_died("SIGTERM"),
    ),
    "sigkill-parent": Fault(
        "signals_its_parent(signal.SIGKILL)",
        Verdict(
            Outcome.ERROR,
            r"the world process w\d+ ended with SIGKILL before it judged the test",
            None,
            Cause.INFRASTRUCTURE,
        ),
        in_torch=_main_died("SIGKILL"),
    ),
    "sigstop-parent": Fault(
        "signals_its_parent(signal.SIGSTOP)",
        Verdict(
            Outcome.ERROR,
            r"the world process w\d+ has sent nothing for .* s more than its test may take: it was stopped, or is stuck",
            None,
            Cause.INFRASTRUCTURE,
        ),
        kinds=WORLDS,
        slow=True,
    ),
    "port": Fault(
        "takes_the_port_of_the_rendezvous",
        Verdict(Outcome.FAILED, rf"rank {{K}} of 2 failed: OSError: \[Errno {errno.EADDRINUSE}\].*"),
        kinds=WORLDS,
    ),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One test of the matrix."""

    fault: str
    phase: str
    rank: int
    kind: str

    def __str__(self) -> str:
        return f"{self.fault}-{self.phase}-{self.rank}-{self.kind}"

    @property
    def what(self) -> Fault:
        return FAULTS[self.fault]

    @property
    def verdict(self) -> Verdict:
        fault = self.what
        wanted = fault.in_torch if self.kind == "torch" and fault.in_torch else fault.verdict
        if self.phase != "call" and wanted.outcome is Outcome.FAILED and not fault.slow:
            return dataclasses.replace(wanted, outcome=Outcome.ERROR)  # pytest's word for other phases
        return wanted

    def is_in(self, name: str) -> bool:
        """Whether this is the name of its test."""
        in_torch = re.fullmatch(r"test_\d+_" + str(self).replace("-", "_"), name)
        return name.endswith(f"[{SIZE}xgloo-{self}]") or bool(in_torch)

    def check(self, result: TestResult) -> str:
        """What is wrong with its result; empty if nothing is."""
        wanted = self.verdict
        culprit = self.rank if wanted.culprit == CULPRIT else wanted.culprit
        if (result.outcome, result.culprit, result.cause) != (wanted.outcome, culprit, wanted.cause):
            return (
                f"{self}: {result.outcome}, culprit {result.culprit}, cause {result.cause}: {result.message}"
            )
        if not re.match(self._pattern(wanted.message), result.message):
            return f"{self}: not {self._pattern(wanted.message)!r}: {result.message}"
        pattern = self._pattern(wanted.note)
        if pattern and not any(re.match(pattern, note) for note in result.notes):
            return f"{self}: none of its notes is {pattern!r}: {[note[:200] for note in result.notes]}"
        return ""

    def _pattern(self, text: str) -> str:
        where = "" if self.phase == "call" else f" in {self.phase}"
        return (
            text.replace("{K}", str(self.rank))
            .replace("{PHASE}", self.phase)
            .replace("{IN}", re.escape(where))
        )


def all_cells() -> Iterator[Cell]:
    """Every fault in every phase, by the first and the last rank, in every kind of world where it makes sense."""
    for name, fault in FAULTS.items():
        for phase, rank, kind in itertools.product(fault.phases, (0, SIZE - 1), fault.kinds):
            if phase == "call" or kind in WORLDS:  # torch runs set-up and tear-down in the main process
                yield Cell(name, phase, rank, kind)


def reduced_cells() -> Iterator[Cell]:
    """Every fault in every phase and in torch's class once; ranks and kinds of worlds take turns."""
    for number, name in enumerate(FAULTS):
        fault = FAULTS[name]
        worlds = [kind for kind in fault.kinds if kind in WORLDS]
        for offset, phase in enumerate(fault.phases):
            turn = number + offset
            yield Cell(name, phase, turn % SIZE, worlds[turn // SIZE % len(worlds)])
        if "torch" in fault.kinds:
            yield Cell(name, "call", (number + 1) % SIZE, "torch")


def chosen_cells(environ: Mapping[str, str] = os.environ) -> tuple[Cell, ...]:
    """What the environment asks for; nothing without it."""
    choice = environ.get(CHOICE, "")
    if choice in ("", "reduced"):
        return tuple(reduced_cells()) if choice else ()
    wanted = choice.split(",")
    return tuple(cell for cell in all_cells() if choice == "full" or str(cell) in wanted)
