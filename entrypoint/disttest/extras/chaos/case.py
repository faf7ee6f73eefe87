"""Data of a chaos test: the fault, the contract, the baseline run, and the observations of the tool in a rank."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from disttest.model import Count, Frozen, Seconds, SeenCall, TestCase, TestResult

NAME = "chaos"
"""Key of this plugin in the data of tests and ranks."""


class FaultKind(StrEnum):
    """Kind of fault; the value is its word on the command line."""

    KILL = "kill"
    """Kill the process; its peers' connections break."""
    STOP = "stop"
    """Stop the process; its connections stay open and carry nothing."""
    RAISE = "raise"
    """Raise an exception in the call; the process lives on."""
    DELAY = "delay"
    """Delay the call."""


class Survival(StrEnum):
    """Reaction that a contract requires of the other ranks."""

    CONNECTION_ERROR = "connection-error"
    """They raise a communication error soon after the fault."""
    TIMEOUT = "timeout"
    """They raise a communication error by the time limit of the group."""
    ERROR = "error"
    """They raise any error by the time limit of the group."""
    PASSES = "passes"
    """They pass and record the same values as in the baseline."""
    RECOVERS = "recovers"
    """They pass as with ``PASSES``; the faulty rank need not."""

    @property
    def goes_on(self) -> bool:
        """Whether the ranks have to pass."""
        return self in (Survival.PASSES, Survival.RECOVERS)


class Fault(Frozen):
    """One fault in one call of one rank."""

    kind: FaultKind
    rank: Count
    call: Count
    """Number of the call among those that the rank issues in the test, from 1."""
    during: bool = False
    """Inject the fault after the backend has accepted the call, not before."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.rank}:{self.call}{':during' if self.during else ''}"


class Contract(Frozen):
    """Reaction that a test promises for each kind of fault. The default fits code that does not recover."""

    kill: Survival = Survival.CONNECTION_ERROR
    stop: Survival = Survival.TIMEOUT
    raise_: Survival = Survival.TIMEOUT
    delay: Survival = Survival.PASSES
    within_s: Seconds = 1.0
    """Time allowed to notice a broken connection, and to exceed the time limit of a group."""

    def of(self, kind: FaultKind) -> Survival:
        """Return the reaction that the contract requires after a fault of this kind."""
        wanted: Survival = getattr(self, "raise_" if kind is FaultKind.RAISE else kind)
        return wanted


class BaselineCall(Frozen):
    """A call of a rank in the baseline run: enough to tell which ranks wait for which in it."""

    op: str
    group: str
    members: tuple[int, ...]
    """Ranks of the call's group."""
    seq: int
    shown: SeenCall
    peer: int | None = None
    root: int | None = None
    tag: int = 0


class BaselineRank(Frozen):
    """Calls and recorded values of a rank in the baseline run."""

    rank: Count
    calls: tuple[BaselineCall, ...] = ()
    numbers: dict[str, str] = msgspec.field(default_factory=dict)
    """Values that the test recorded with ``record_property``; tensors as shape and digest."""


class ChaosCase(Frozen):
    """The fault injected into a test, and the outcome required of it."""

    # The case travels in the data of the test, so that a world can judge without the plan and without the
    # baseline.
    contract: Contract
    fault: Fault | None = None
    """None in the baseline run, which counts the calls."""
    struck: SeenCall = SeenCall(what="")
    """The call that the fault is injected into, as the baseline had it."""
    calls: Count = 0
    """Number of calls that the faulty rank issues in the baseline."""
    needing: tuple[int, ...] = ()
    """Ranks that wait for the faulty one in that call or later, and so must notice the fault."""
    numbers: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """Rank -> values that it records in the baseline."""
    limit_s: Seconds = 0.0
    """Time limit of the process groups."""
    delay_s: Seconds = 0.0
    timeout_s: Seconds = 0.0
    """Time limit of the test with the fault."""


def case_of(test: TestCase) -> ChaosCase | None:
    """Return the chaos data of a test; None if it takes no part in the run."""
    data = test.data.get(NAME)
    return None if data is None else msgspec.convert(data, ChaosCase)


def fault_of(test: TestCase) -> Fault | None:
    """Return the fault injected into a test, if any."""
    case = case_of(test)
    return case.fault if case else None


def baseline_ranks(result: TestResult) -> tuple[BaselineRank, ...]:
    """Return the calls of each rank, where a baseline run counted them."""
    section = result.sections.get(NAME)
    return () if section is None else msgspec.convert(section.data, tuple[BaselineRank, ...])


class SeenError(Frozen):
    """A call or a wait that raised."""

    what: str
    """Such as ``all_reduce at test_step.py:12``."""
    text: str
    """The exception in one line, its class first."""
    began_s: float
    """When the rank began to wait, on the monotonic clock, which all processes of a machine share."""
    ended_s: float


class ChaosSeen(Frozen):
    """Observations of one rank in one test."""

    handed: int = 0
    """Number of calls handed to the backend."""
    calls: tuple[BaselineCall, ...] = ()
    errors: tuple[SeenError, ...] = ()
    raised: tuple[str, ...] = ()
    """Class and message of the exceptions that the test raised, the last first."""
    numbers: dict[str, str] = msgspec.field(default_factory=dict)
