"""The words of the product as frozen data: what a test is, what a rank did, what a run came to.

Everything that crosses a process border or reaches a report is one of these. Times named ``at_s`` are
seconds since the Unix epoch, derived from the monotonic clock (a run's clock never jumps); ``*_s``
otherwise are durations in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, dataclass_transform

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding can raise where the data come from somebody else."""

Moment = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]
"""Seconds since the epoch, up to the year 5138. What is outside is no time, and calculating with it means nothing."""
Seconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
"""A duration, or a time by the clock of a rank, which its test may have set."""
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""A number of things of which a run cannot have a million."""
Code = Annotated[int, msgspec.Meta(ge=0, le=255)]
"""An exit code; a larger one would become another one on the way to the shell."""

SCHEMA_VERSION = 1
"""Version of the journal and of ``results.json``; raised when an old reader would misread the new."""


# Type checkers do not see that msgspec hands these keywords on to subclasses.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Frozen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of all data types.

    Frozen data built from the inside out can hold no cycle, so the collector need not look for one: a run of 100,000
    tests is most of a million of these.
    """


class Isolation(StrEnum):
    """Whether a test gets new processes or may follow another test in living ones."""

    FRESH = "fresh"
    WARM = "warm"


class WorldKind(StrEnum):
    """How a test meets its ranks."""

    RANKS = "ranks"
    """Every rank runs the test itself."""
    MAIN = "main"
    """A main process runs the test and starts the ranks: torch's ``MultiProcessTestCase`` and its kind."""
    THREADS = "threads"
    """A main process runs the test and its ranks are threads of it, or simulated: ``MultiThreadedTestCase``."""
    PROCESS = "process"
    """There are no ranks: an ordinary test, contained in a process that is watched over."""


class VerdictRule(StrEnum):
    """Whose rules judge a test of kind ``main``."""

    STRICT = "strict"
    """Every rank counts."""
    TORCH = "torch"
    """As torch's own harness: after errors, rank 0 alone counts."""


class FlakyRule(StrEnum):
    """What a test is worth that passed only when it was tried again."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"


class RecordRule(StrEnum):
    """Of which tests each rank's recording is kept, for ``disttest replay``."""

    OFF = "off"
    FAILURES = "failures"
    ALL = "all"


class DeadlockRule(StrEnum):
    """What becomes of a test whose ranks are proven to wait for each other."""

    FAIL = "fail"
    """It ends at once, as a hang."""
    REPORT = "report"
    """It goes on to its time limit, with a note."""
    OFF = "off"
    """Nobody looks."""


class Outcome(StrEnum):
    """What a test (or one rank's part of it) came to."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    NOT_RUN = "not_run"
    """Nothing has called it, and it was not skipped: the run stopped before (``-x``), or nobody reported the call."""

    @property
    def has_run(self) -> bool:
        """Whether the test was called, or should have been."""
        return self not in (Outcome.SKIPPED, Outcome.NOT_RUN)

    @property
    def is_bad(self) -> bool:
        """Whether it makes the run red."""
        return self in (Outcome.FAILED, Outcome.ERROR)

    @property
    def is_final(self) -> bool:
        """Whether nothing that a rank does after it can change what it came to; its peers may wait for it in vain."""
        return self.is_bad or self is Outcome.XFAILED


class Cause(StrEnum):
    """Whom a bad outcome accuses."""

    TEST = "test"
    INFRASTRUCTURE = "infrastructure"


class WorldShape(Frozen):
    """What kind of world a test runs in."""

    size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    backend: str
    device: str = "cpu"
    """Device type of the ranks: ``cpu`` or ``cuda``."""
    nodes: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    """Machines that the ranks are spread over, the same number on each."""

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each machine."""
        return self.size // self.nodes

    def __str__(self) -> str:
        spread = f"@{self.nodes}nodes" if self.nodes > 1 else ""
        return f"{self.size}x{self.backend}{spread}"


ALONE = WorldShape(size=1, backend="none")
"""What a contained test runs in, which is no world: one process, without a group."""


class WindowEdge(StrEnum):
    """Where something stands in the time for which a call is pending."""

    OPENS = "opens"
    """The call is issued."""
    INSIDE = "inside"
    CLOSES = "closes"
    """Somebody has waited for it."""


class SeenCall(Frozen):
    """A call to `torch.distributed` as a sanitizer has seen it, or what was done beside one."""

    what: str
    """``all_reduce SUM of float32[4], #3 of group default``."""
    file: str = ""
    """Of the line in the user's code; absolute, as it was seen there, and empty where nobody in Python has called."""
    line: int = 0
    decides: bool = False
    """The finding is about this one; the others stand around it."""
    window: WindowEdge | None = None
    """Of a race: where it stands in the time for which a call is pending."""
    same: bool | None = None
    """Whether all ranks had the same numbers there; None where that was not compared."""

    @property
    def where(self) -> str:
        """``test_step.py:39``, or nothing."""
        return f"{self.file.rpartition('/')[2]}:{self.line}" if self.file else ""


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
    numbers: dict[str, str] = {}
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
    numbers: dict[str, dict[str, str]] = {}
    """Rank -> what it records, unharmed."""
    limit_s: Seconds = 0.0
    """Time limit of its process groups."""
    delay_s: Seconds = 0.0
    timeout_s: Seconds = 0.0
    """How long the harmed test may take."""


class TestCase(Frozen):
    """One test as it is reported: a pytest item at one world size and backend."""

    __test__ = False  # pytest, this is not a test class

    nodeid: str
    slug: str
    """Name of its log folder: unique in the run, safe in any file system."""
    classname: str
    name: str
    file: str
    """Path relative to the root directory of the run."""
    line: int
    """Counted from 1."""
    suite: str
    world: WorldShape | None = None
    """None for an ordinary test, which runs in the controller unless it is contained."""
    kind: WorldKind = WorldKind.RANKS
    isolation: Isolation = Isolation.FRESH
    timeout_s: float = 300.0
    exclusive: bool = False
    """Nothing else may run meanwhile."""
    ranks_may_differ: bool = False
    """Marked so: ranks may skip what others run, or expect a failure where others do not."""
    collected_as: str = ""
    """The node id to select it by, where its own cannot: a hook asked for its world when all was collected."""
    shares_process: bool = False
    """Contained, and in a file that needs what others have set up: such files run in one process."""
    chaos: ChaosCase | None = None
    """Its run under ``disttest chaos``."""


class RankEnd(StrEnum):
    """How a rank's part of a test ended."""

    REPORTED = "reported"
    """It ran the whole protocol and said so."""
    EXITED = "exited"
    """Its process left in the middle, with an exit code."""
    SIGNALLED = "signalled"
    """Its process was ended by a signal that we did not send."""
    KILLED = "killed"
    """We ended it: another rank had failed, or the deadline had passed."""
    LOST = "lost"
    """It closed its control channel, or sent a malformed message."""


MAIN_RANK = -1


def rank_name(rank: int) -> str:
    """``rank 3``; the main process is no rank."""
    return "main process" if rank == MAIN_RANK else f"rank {rank}"


def rank_names(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 1,2``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {','.join(map(str, ranks))}"


class Collective(Frozen):
    """One collective (or point-to-point call) as a rank's flight recorder has it."""

    group: str
    seq: int
    """Sequence number within the group: ranks that agree have called the same thing at the same number."""
    op: str
    backend: str = ""
    inputs: str = ""
    """Dtypes and shapes of the inputs: ``Float[4, 3]``."""
    outputs: str = ""
    done: bool = False
    at_s: Seconds = 0.0
    where: str = ""
    """``file:line`` of the call in the user's code."""
    p2p: bool = False

    @property
    def name(self) -> str:
        """``all_reduce #7 (group default)``."""
        return f"{self.op} #{self.seq} (group {self.group})"


class DeadlockKind(StrEnum):
    """Why no rank of a deadlock can go on."""

    FINISHED = "finished"
    """They wait for a rank that has finished the test, or is gone."""
    MISMATCH = "mismatch"
    """They have called different things at one number of a group."""
    ROOTS = "roots"
    """They have called the same, with different roots."""
    GROUPS = "groups"
    """They wait in different groups for each other."""
    CYCLE = "cycle"
    """They wait for each other in calls of one group that do not meet."""
    POINT_TO_POINT = "point-to-point"
    """They wait in sends and receives that do not match."""
    STORE = "store"
    """They wait for keys that nobody is left to set."""
    ALONE = "alone"
    """They wait in a constructor that others have not called."""


class Edge(Frozen):
    """What one thread of a rank waits in, and for whom: the edges of a wait-for graph."""

    rank: int
    what: str
    """``all_reduce #3 of group default``, ``recv #1 from rank 0``, ``key 'ready' of a store``."""
    where: str = ""
    """``file:line`` of the call in the user's code."""
    since_s: Seconds = 0.0
    """How long it had waited when the deadlock was proven."""
    ranks: tuple[int, ...] = ()
    """Whom it waits for."""
    reason: str = ""
    """What those do instead: ``which has finished the test``."""
    group: str = ""
    seq: int = 0
    op: str = ""


class Deadlock(Frozen):
    """The proof that no rank can go on: every thread of every rank waits for something that only these ranks could end."""

    kind: DeadlockKind
    edges: tuple[Edge, ...]
    """In order of rank."""
    finished: tuple[int, ...] = ()
    """Ranks that have finished the test, or are gone."""
    after_s: Seconds = 0.0
    """Seconds from the start of the test to the proof."""
    ended: bool = False
    """Whether the test was ended for it; else it went on to its time limit."""


class RankRecord(Frozen):
    """What one rank did in one attempt of a test."""

    rank: Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)]
    """:data:`MAIN_RANK` for the main process of a test that starts its ranks by itself."""
    end: RankEnd
    outcome: Outcome | None = None
    """None unless the rank reported."""
    phase: str = "setup"
    """The phase it was in last, or the phase that failed: setup, call or teardown."""
    message: str = ""
    """One line: the exception, the skip reason, or what ended the process."""
    details: str = ""
    """Traceback and captured sections of a failure."""
    stacks: str = ""
    """Python stacks of all its threads, where they were taken."""
    collectives: tuple[Collective, ...] = ()
    """The last collectives it had called in this test, where they were asked for."""
    failed_after_s: Seconds | None = None
    """Seconds from the start of the test to this rank's failure or death."""
    exit_code: int | None = None
    signal: int | None = None
    hung: bool = False
    """It was still running when the test's deadline passed."""
    pid: int = 0
    log: str = ""
    """Its log file, relative to the results directory."""
    xfail: bool = False
    """Its test was marked as an expected failure when the rank began with its last phase; true if it began with none."""
    subtests_skipped: int = 0
    """Subtests of a test that passed which were skipped, or failed as expected."""
    leaks: tuple[str, ...] = ()
    """What the test left behind in this rank, by name."""
    durations_s: dict[str, Seconds] = {}
    """Phase -> seconds."""
    node: str = ""
    """The machine that it ran on, where a world spans several."""

    @property
    def has_failed(self) -> bool:
        """Whether it reported a failure; its process may have died after that."""
        return self.outcome is not None and self.outcome.is_bad

    @property
    def has_died(self) -> bool:
        """Whether its process ended, or its channel broke, without our doing."""
        return self.end in (RankEnd.EXITED, RankEnd.SIGNALLED, RankEnd.LOST)


class RankCalls(Frozen):
    """Calls of one rank, in the order in which it has issued them."""

    rank: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    calls: tuple[SeenCall, ...]


CHAOS = "chaos"


class SanitizerFinding(Frozen):
    """What a sanitizer has found in a test, whatever the test itself came to."""

    sanitizer: str
    """The name by which ``--sanitize`` knows it: ``order``; ``chaos`` for a broken contract."""
    kind: str
    """What it is, in a word of that sanitizer: ``mismatch``, ``group-order``, …"""
    message: str
    """One line: which rank does what, and where."""
    effect: str
    """What comes of it, on which backend."""
    advice: str
    """What to do next."""
    fails: bool = False
    """Whether it fails the test; else it is a warning beside the verdict."""
    orders: tuple[RankCalls, ...] = ()
    """The calls that it is about, rank by rank."""

    @property
    def source(self) -> str:
        """Who has found it: ``sanitizer order``, ``chaos``."""
        return CHAOS if self.sanitizer == CHAOS else f"sanitizer {self.sanitizer}"


class TestResult(Frozen):
    """What one attempt of a test came to."""

    __test__ = False

    nodeid: str
    outcome: Outcome
    cause: Cause | None = None
    attempt: Count = 1
    started_at_s: Moment = 0.0
    duration_s: Seconds = 0.0
    phase: str = "call"
    """The phase that decided."""
    message: str = ""
    """One line that names the culprit rank and says what it did."""
    details: str = ""
    culprit: int | None = None
    victims: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    """Things worth knowing that do not change the outcome: ranks that skipped, leaks."""
    ranks: tuple[RankRecord, ...] = ()
    world_id: str = ""
    """The world that ran it; empty for ordinary tests and for skips decided before a world started."""
    torch_outcome: Outcome | None = None
    """What torch's own harness would have said of a test of kind ``main``, where that is known."""
    deadlock: Deadlock | None = None
    """The proof that its ranks waited for each other, where there is one."""
    findings: tuple[SanitizerFinding, ...] = ()
    """What sanitizers have found."""
    unharmed: tuple[UnharmedRank, ...] = ()
    """The calls of its ranks, where chaos has counted them."""
    recorded: tuple[int, ...] = ()
    """Ranks whose recording was kept, for ``disttest replay``."""

    @property
    def ends_by_deadlock(self) -> bool:
        """Whether it was ended for its deadlock, before its time limit."""
        return self.deadlock is not None and self.deadlock.ended

    @property
    def is_false_green_avoided(self) -> bool:
        """Red here, where torch's own harness would have said passed or skipped."""
        return self.outcome.is_bad and self.torch_outcome is not None and not self.torch_outcome.is_bad

    @property
    def is_vacuous(self) -> bool:
        """Skipped here, since no rank would run, which is where torch's own harness says passed."""
        return self.outcome is Outcome.SKIPPED and self.torch_outcome is Outcome.PASSED


class Hardware(Frozen):
    """The machine as far as a report needs it."""

    cpus: Count
    gpus: tuple[str, ...] = ()
    """Model names by index."""
    python: str = ""
    torch: str = ""
    platform: str = ""
    driver: str = ""
    """Version of the GPUs' driver."""
    cuda: str = ""
    """Newest CUDA version that it serves."""
    memory: int = 0
    """Bytes that this run may use."""
    shm: int = 0
    """Bytes of ``/dev/shm``."""
    uuids: tuple[str, ...] = ()
    """Of the GPUs, by index."""


class Invocation(Frozen):
    """What a run was asked, as far as it takes to ask the same of one test again."""

    cwd: str = ""
    """The directory it was started in."""
    workspace: str = ""
    """Root of the repository, where the environment says it (``GITHUB_WORKSPACE``)."""
    bundled: bool = False
    """Its tests are suites that come with disttest."""
    options: dict[str, str] = {}
    """Option -> value, as they were given by flags and variables; secret ones are left out."""
    pytest_args: tuple[str, ...] = ()
    """Arguments for pytest, without the tests and without ours."""
    environment: dict[str, str] = {}
    """Those variables that decide how classes of torch's kind run, where they were set."""


class ShardSpan(Frozen):
    """What one shard brought into a merged result."""

    shard: Count | None
    """Its number in the plan; None when it was not run from a plan."""
    run_id: str
    directory: str
    """Its results directory, relative to the merged one."""
    hardware: Hardware
    slots: Count
    started_at_s: Moment
    ended_at_s: Moment
    exit_code: Code
    reason: str = ""
    label: str = ""
    """What the names of its worlds and slots begin with, before a slash."""
    cpu_slots: Count = 0
    """Slots of the CPU beside the GPUs that ``slots`` counts, where its worlds computed on both."""


class Slot(Frozen):
    """Something a rank can sit on: a GPU, a MIG slice, or a share of the CPU."""

    name: str
    """``cpu:0``, ``gpu:3``; unique on the machine."""
    device: str = "cpu"
    """Device type: ``cpu`` or ``cuda``."""
    index: int = 0
    uuid: str = ""
    """The GPU's UUID, which is what its world gets to see; empty for the CPU."""
    group: str = ""
    """Slots of one group are near each other: GPUs behind one NVLink, CPU shares of one NUMA node."""


class Gang(Frozen):
    """Tests that run one after another in worlds of one shape, on one set of slots."""

    gang_id: str
    nodeids: tuple[str, ...]
    """In the order in which they run."""
    shape: WorldShape
    isolation: Isolation
    expected_s: float = 0.0
    """How long it is expected to take, world start included; 0 when nothing is known."""
    exclusive: bool = False
    """Nothing else may run meanwhile."""
    shares: bool = False
    """Its ranks may share GPUs: tests that start their ranks by themselves say what they need by themselves."""
    urgent: bool = False
    """It starts before all others: one of its tests failed last time and ``--failed-first`` was given."""
