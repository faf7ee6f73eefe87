"""Record of one rank in an attempt of a test: its outcome, its calls, and the warnings and facts of the test."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Annotated

import msgspec

from disttest.model.frozen import Frozen, Seconds


class Outcome(StrEnum):
    """Outcome of a test, or of one rank's part of it."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    # pytest counts such a test as nothing and ends with 0: a run that tested nothing would be green.
    NOT_RUN = "not_run"
    """The test was neither called nor skipped: the run stopped before (``-x``), or no process reported its call."""

    @property
    def has_run(self) -> bool:
        """Whether the test was called, or should have been."""
        return self not in (Outcome.SKIPPED, Outcome.NOT_RUN)

    @property
    def is_bad(self) -> bool:
        """Whether it makes the run red."""
        return self in (Outcome.FAILED, Outcome.ERROR)

    @property
    def is_failure(self) -> bool:
        """Whether the test failed, also if that was expected. A rank's peers may wait for it in vain."""
        return self.is_bad or self is Outcome.XFAILED


class Cause(StrEnum):
    """The party to blame for a bad outcome."""

    TEST = "test"
    INFRASTRUCTURE = "infrastructure"
    PLUGIN = "plugin"
    """A plugin failed next to the test, so the test's own outcome is unknown. There is no retry."""


class RankEnd(StrEnum):
    """The way in which a rank's part of a test ended."""

    REPORTED = "reported"
    """The rank ran the whole protocol and reported it."""
    EXITED = "exited"
    """Its process exited before the end of the test."""
    SIGNALLED = "signalled"
    """A signal that disttest did not send ended its process."""
    KILLED = "killed"
    """disttest ended it because another rank had failed, or the deadline had passed."""
    LOST = "lost"
    """It closed its control channel, or sent a malformed message."""


class RecordedWarning(Frozen):
    """A warning that pytest's filters let pass."""

    category: str
    """Its class, with the module: ``builtins.UserWarning``."""
    message: str
    file: str
    line: int


class FactKind(StrEnum):
    """The part of a report to which a fact belongs."""

    PROPERTY = "property"
    """``record_property``."""
    ATTRIBUTE = "attribute"
    """``record_xml_attribute``."""
    SUITE_PROPERTY = "suite property"
    """``record_testsuite_property``."""
    SECTION = "section"
    """``add_report_section``."""


class RecordedFact(Frozen):
    """A name and a value, as text."""

    kind: FactKind
    name: str
    value: str


class Recorded(Frozen):
    """All warnings and facts of one process in one attempt of a test."""

    warnings: tuple[RecordedWarning, ...] = ()
    facts: tuple[RecordedFact, ...] = ()


MAIN_RANK = -1
LONE_PROCESS = -2
"""Takes the place of a rank in sentences about an isolated test, whose only process is not a rank."""

_LEAST_RUN = 4
"""Consecutive ranks that are written as a range."""


def rank_name(rank: int) -> str:
    """Return ``rank 3``, or the name of the main process, which is not a rank."""
    return "main process" if rank == MAIN_RANK else f"rank {rank}"


def process_name(rank: int) -> str:
    """Return ``rank 3``, or the words for a process that is not a rank, as the subject of a sentence."""
    return {MAIN_RANK: "the main process", LONE_PROCESS: "its process"}.get(rank, f"rank {rank}")


def rank_of(rank: int, size: int) -> str:
    """Return ``rank 3 of 4``, or the words for a process that is not a rank."""
    return f"rank {rank} of {size}" if rank >= 0 else process_name(rank)


def rank_names(ranks: Collection[int]) -> str:
    """Name ranks: ``rank 1``, ``ranks 0, 2``, ``ranks 0-63, 65``."""
    named = sorted(ranks)
    if len(named) == 1:
        return rank_name(named[0])
    parts = (
        f"{run[0]}-{run[-1]}" if len(run) >= _LEAST_RUN else ", ".join(map(str, run))
        for run in consecutive(named)
    )
    return f"ranks {', '.join(parts)}"


def consecutive(ranks: Iterable[int]) -> list[range]:
    """Split ranks into runs of consecutive ones, in their order."""
    runs: list[range] = []
    for rank in ranks:
        if runs and rank == runs[-1].stop:
            runs[-1] = range(runs[-1].start, rank + 1)
        else:
            runs.append(range(rank, rank + 1))
    return runs


def group_title(name: str, description: str, ranks: Collection[int]) -> str:
    """Return the title of a group: ``default``, its description, or its number and ranks: ``#1 (ranks 0, 1)``.

    Args:
        name: torch's name; a hash if only its members have created the group.
        description: description by its creator; empty without one.
        ranks: its members, as ranks of the default group.
    """
    return description or (
        f"#{name} ({rank_names(ranks)})" if name.isdecimal() else f"of {rank_names(ranks)}"
    )


class Collective(Frozen):
    """One collective or point-to-point call of a rank."""

    group: str
    seq: int
    """Sequence number within the group; ranks that agree make the same call at the same number."""
    op: str
    backend: str = ""
    inputs: str = ""
    """Dtypes and shapes of the inputs: ``float32[4, 3]``."""
    outputs: str = ""
    done: bool = False
    at_s: Seconds = 0.0
    where: str = ""
    """``file:line`` of the call in the user's code."""
    p2p: bool = False
    ranks: tuple[int, ...] = ()
    """Ranks of the group; empty if unknown. Several groups of a DeviceMesh have one description."""

    @property
    def name(self) -> str:
        """``all_reduce #7 (group default)``."""
        return f"{self.op} #{self.seq} (group {self.group})"


class StartedProcess(Frozen):
    """A process that a test started, and that still ran when the test was ended."""

    pid: int
    role: str = ""
    """``rank 1``, ``rank 1 of mp.spawn`` or a name of multiprocessing; empty if unknown."""
    command: str = ""
    stacks: str = ""
    """Python stacks of its threads; empty if it cannot write them."""

    def __str__(self) -> str:
        facts = ", ".join(filter(None, (self.role, self.command)))
        return f"process {self.pid} ({facts})" if facts else f"process {self.pid}"


class RankRecord(Frozen):
    """Record of one rank in one attempt of a test."""

    rank: Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)]
    """:data:`MAIN_RANK` for the main process of a test that starts its ranks."""
    end: RankEnd
    outcome: Outcome | None = None
    """None unless the rank reported."""
    phase: str = "setup"
    """The last phase, or the phase that failed: setup, call or teardown."""
    message: str = ""
    """One line: the exception, the skip reason, or the cause of the process's end."""
    details: str = ""
    """Traceback and captured sections of a failure."""
    stacks: str = ""
    """Python stacks of all its threads, if they were collected."""
    started: tuple[StartedProcess, ...] = ()
    """The processes that an isolated test had started, if their stacks were collected."""
    process_state: str = ""
    """The kernel's reason why it could not write stacks: ``stopped (SIGSTOP, or a debugger)``."""
    collectives: tuple[Collective, ...] = ()
    """Its last collectives in this test, if they were collected."""
    unrendered: bool = False
    """Whether it failed and its report could not be rendered; message and details then need no code of the test."""
    because_of: tuple[int, ...] = ()
    """Ranks that had not joined the failed call, or the one rank that made a different call, if known."""
    differing_calls: str = ""
    """The calls that do not match, if its backend ended the process because of them."""
    in_flight: str = ""
    """Exception that was passing through a ``finally``, ``with`` or ``except`` block when the rank was ended."""
    failed_after_s: Seconds | None = None
    """Seconds from the start of the test to this rank's failure or death."""
    exit_code: int | None = None
    signal: int | None = None
    hung: bool = False
    """Whether it was still running at the test's deadline."""
    ended_for: str = ""
    """Word of the plugin that found why no rank could make progress, if disttest ended the rank for that reason."""
    woken: bool = False
    """Whether it was a thread that was woken from its wait because another one had failed."""
    not_awaited: bool = False
    """Whether the test started this rank and ended without waiting for it."""
    pid: int = 0
    log: str = ""
    """Its log file, relative to the results directory."""
    strict: bool = False
    """Whether it passed although the test has a strict xfail mark."""
    xfail: bool = False
    """Whether the test was an expected failure when the rank began its last phase; true if it began none."""
    in_subtest: bool = False
    """Whether the failure that decides is one of a subtest."""
    subtests_skipped: int = 0
    """Number of subtests of a passed test that were skipped or failed as expected."""
    leaks: tuple[str, ...] = ()
    """Names of the state that the test left behind in this rank."""
    recorded: Recorded = Recorded()
    """Warnings and facts that the test recorded in this rank."""
    durations_s: dict[str, Seconds] = msgspec.field(default_factory=dict)
    """Phase -> seconds."""
    node: str = ""
    """The machine on which it ran, if the world spans several."""

    @property
    def all_stacks(self) -> str:
        """Its stacks, then those of each process that the test started, below its name."""
        below = (
            f"{each}:\n{each.stacks or '  (its Python stack is not available)'}" for each in self.started
        )
        return "\n\n".join(filter(None, (self.stacks, *below)))

    @property
    def has_failed(self) -> bool:
        """Whether it reported a failure; its process may have died afterwards."""
        return self.outcome is not None and self.outcome.is_bad

    @property
    def has_died(self) -> bool:
        """Whether its process ended, or its channel broke, although disttest did not end it."""
        return self.end in (RankEnd.EXITED, RankEnd.SIGNALLED, RankEnd.LOST)
