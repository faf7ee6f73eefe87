"""What chaos does to a test: the fault, the contract, and the run without faults that it is compared with."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from disttest.model import Count, Frozen, Seconds, SeenCall, TestCase, TestResult

NAME = "chaos"
"""The name of this plugin in data of tests and ranks."""


class FaultKind(StrEnum):
    """What chaos does to a rank; the value is its word on the command line."""

    KILL = "kill"
    """Its process is killed: the peers' connections break."""
    STOP = "stop"
    """Its process is stopped: connections stand, and nothing comes."""
    RAISE = "raise"
    """The call raises in it; the process lives on."""
    DELAY = "delay"
    """It comes late."""


class Survival(StrEnum):
    """What a contract wants of the other ranks."""

    CONNECTION_ERROR = "connection-error"
    """They raise an error of communication soon after the fault."""
    TIMEOUT = "timeout"
    """They raise one by the time limit of the group."""
    ERROR = "error"
    """They raise anything by then."""
    PASSES = "passes"
    """They pass; what they record is what they record unharmed."""
    RECOVERS = "recovers"
    """The same, without the harmed rank."""

    @property
    def goes_on(self) -> bool:
        """Whether they have to pass."""
        return self in (Survival.PASSES, Survival.RECOVERS)


class Fault(Frozen):
    """One fault in one call of one rank."""

    kind: FaultKind
    rank: Count
    call: Count
    """Its number among the calls that the rank issues in the test, from 1."""
    during: bool = False
    """It strikes when the backend has taken the call, not before."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.rank}:{self.call}{':during' if self.during else ''}"


class Contract(Frozen):
    """What a test promises for each kind of fault; the default is that of code that does not recover."""

    kill: Survival = Survival.CONNECTION_ERROR
    stop: Survival = Survival.TIMEOUT
    raise_: Survival = Survival.TIMEOUT
    delay: Survival = Survival.PASSES
    within_s: Seconds = 1.0
    """How soon a broken connection is noticed, and how much later than its limit a time-out may come."""

    def of(self, kind: FaultKind) -> Survival:
        """What is wanted after such a fault."""
        wanted: Survival = getattr(self, "raise_" if kind is FaultKind.RAISE else kind)
        return wanted


class UnharmedCall(Frozen):
    """A call of a rank in a run without faults: enough to know who waits for whom in it."""

    op: str
    group: str
    members: tuple[int, ...]
    """Ranks of its group."""
    seq: int
    shown: SeenCall
    peer: int | None = None
    root: int | None = None
    tag: int = 0


class UnharmedRank(Frozen):
    """What a rank did in a run without faults."""

    rank: Count
    calls: tuple[UnharmedCall, ...] = ()
    numbers: dict[str, str] = msgspec.field(default_factory=dict)
    """What the test has recorded by ``record_property``; tensors by shape and digest."""


class ChaosCase(Frozen):
    """What chaos does to a test, and what must come of it."""

    contract: Contract
    fault: Fault | None = None
    """None: nothing; the calls are counted."""
    struck: SeenCall = SeenCall(what="")
    """The call that it strikes, as the unharmed run had it."""
    calls: Count = 0
    """How many the harmed rank issues, unharmed."""
    needing: tuple[int, ...] = ()
    """Ranks that wait for the harmed one in that call or later, and so must notice."""
    numbers: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """Rank -> what it records, unharmed."""
    limit_s: Seconds = 0.0
    """Time limit of its process groups."""
    delay_s: Seconds = 0.0
    timeout_s: Seconds = 0.0
    """How long the harmed test may take."""


def case_of(test: TestCase) -> ChaosCase | None:
    """What chaos does to a test; None if it has no part in the run."""
    data = test.data.get(NAME)
    return None if data is None else msgspec.convert(data, ChaosCase)


def fault_of(test: TestCase) -> Fault | None:
    """The fault that strikes a test; None if none does."""
    case = case_of(test)
    return case.fault if case else None


def unharmed_ranks(result: TestResult) -> tuple[UnharmedRank, ...]:
    """The calls of the ranks of a test, where they were counted; else nothing."""
    section = result.sections.get(NAME)
    return () if section is None else msgspec.convert(section.data, tuple[UnharmedRank, ...])
