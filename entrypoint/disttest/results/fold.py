"""The one aggregate: folds events into the result of a run. Reporters read this and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from disttest.model import (
    SCHEMA_VERSION,
    Cause,
    Code,
    Count,
    FlakyRule,
    Frozen,
    Hardware,
    Invocation,
    Moment,
    Outcome,
    ShardSpan,
    TestCase,
    TestResult,
    WorldShape,
)
from disttest.results.events import (
    AnyEvent,
    CollectionFailed,
    Noted,
    RunFinished,
    RunStarted,
    ShardJoined,
    TestCollected,
    TestFinished,
    TestStarted,
    WorldEnded,
    WorldStarted,
)

DIED_EARLY = "the run died before it recorded its end"


class TestOutcome(Frozen):
    """A test with all its attempts; the last attempt decides."""

    __test__ = False

    test: TestCase
    attempts: tuple[TestResult, ...]

    @property
    def final(self) -> TestResult:
        """The attempt that counts."""
        return self.attempts[-1]

    @property
    def flaky(self) -> bool:
        """Whether the test passed after a failure; attempts spoiled by a broken machine do not count."""
        own = [attempt for attempt in self.attempts[:-1] if attempt.cause is not Cause.INFRASTRUCTURE]
        return not self.final.outcome.is_bad and any(attempt.outcome.is_bad for attempt in own)

    @property
    def first_bad(self) -> TestResult:
        """The first failed attempt; the final one if none failed."""
        return next((attempt for attempt in self.attempts if attempt.outcome.is_bad), self.final)


class WorldSpan(Frozen):
    """Lifetime of a world, for timelines and cost."""

    world_id: str
    shape: WorldShape
    slots: tuple[str, ...]
    started_at_s: Moment
    ended_at_s: Moment | None = None
    reason: str = ""

    @property
    def on_gpus(self) -> bool:
        """Whether its slots are GPUs."""
        return self.shape.device != "cpu"


class CollectionError(Frozen):
    """A file that could not be collected."""

    nodeid: str
    message: str


class RunResult(Frozen):
    """Result of a run; the content of ``results.json``."""

    run_id: str
    argv: tuple[str, ...]
    root: str
    hardware: Hardware
    slots: Count
    disttest: str
    started_at_s: Moment
    ended_at_s: Moment
    exit_code: Code
    reason: str
    """Reason for an early end; empty if the run was completed."""
    tests: tuple[TestOutcome, ...]
    collection_errors: tuple[CollectionError, ...]
    worlds: tuple[WorldSpan, ...]
    notes: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION
    shards: tuple[ShardSpan, ...] = ()
    """Shards from which a merged result was joined; empty for a run on one machine."""
    plan_id: str = ""
    """The plan of which this run is a shard, or the merge."""
    shard: Count | None = None
    invocation: Invocation = Invocation()
    cpu_slots: Count = 0
    """CPU slots in addition to the GPUs that ``slots`` counts, if worlds of the run computed on both."""
    called_at_s: Moment | None = None
    """Start of the command that supervised the run, before pytest and torch were loaded."""

    @property
    def duration_s(self) -> float:
        """Wall time of the tests, from the end of the collection."""
        return max(0.0, self.ended_at_s - self.started_at_s)

    @property
    def whole_s(self) -> float | None:
        """Wall time of the whole run; None if it is unknown or equals the time of the tests."""
        return None if self.called_at_s is None else max(0.0, self.ended_at_s - self.called_at_s)

    @property
    def attempts(self) -> tuple[TestResult, ...]:
        """Attempts of all tests."""
        return tuple(attempt for test in self.tests for attempt in test.attempts)

    def is_beside(self, world: WorldSpan) -> bool:
        """Whether a world held CPU slots in a run whose cost is counted in GPUs."""
        return bool(self.cpu_slots) and not world.on_gpus

    def counts(self) -> dict[Outcome, int]:
        """Number of tests by final outcome; every outcome is a key."""
        counts = dict.fromkeys(Outcome, 0)
        for test in self.tests:
            counts[test.final.outcome] += 1
        return counts

    @property
    def bad(self) -> tuple[TestOutcome, ...]:
        """Tests that make the run red, in order."""
        return tuple(test for test in self.tests if test.final.outcome.is_bad)

    @property
    def flaky(self) -> tuple[TestOutcome, ...]:
        """Tests that passed only after a retry, in order."""
        return tuple(test for test in self.tests if test.flaky)

    @property
    def nothing_ran(self) -> bool:
        """Whether tests were scheduled and none was called, apart from skips."""
        outcomes = [test.final.outcome for test in self.tests]
        return Outcome.NOT_RUN in outcomes and not any(outcome.has_run for outcome in outcomes)

    @property
    def flaky_fails(self) -> bool:
        """Whether a flaky test makes this run red."""
        return self.invocation.options.get("flaky") == FlakyRule.FAIL

    @property
    def false_greens(self) -> tuple[TestOutcome, ...]:
        """Failed tests that torch's own harness would have passed, in order."""
        return tuple(test for test in self.tests if test.final.is_false_green_avoided)

    @property
    def vacuous(self) -> tuple[TestOutcome, ...]:
        """Skipped tests that torch's own harness passes without a rank, in order."""
        return tuple(test for test in self.tests if test.final.is_vacuous)


# Terminal, JUnit, HTML, summaries and merges agree because all of them read this one result.
# docs/decisions/0005-one-journal-one-fold.md
class Folding:
    """Fold of a growing journal: takes events one by one, and has a result at any time."""

    def __init__(self) -> None:
        self.started: RunStarted | None = None
        self.called_at_s: float | None = None
        self.finished: RunFinished | None = None
        self.tests: dict[str, TestCase] = {}
        self.running: dict[str, TestStarted] = {}
        self.attempts: dict[str, list[TestResult]] = {}
        self.errors: list[CollectionError] = []
        self.worlds: dict[str, WorldSpan] = {}
        self.notes: list[str] = []
        self.shards: list[ShardSpan] = []
        self.last_at_s = 0.0

    def handle(self, event: AnyEvent) -> None:  # noqa: C901 - one line for each kind of event
        """Fold an event."""
        # Each process derives a clock when it starts, and a merge reads several machines, so times may go
        # backwards.
        self.last_at_s = max(self.last_at_s, event.at_s)
        match event:
            case RunStarted():
                self.start(event)
            case TestCollected(test=test):
                self.tests[test.nodeid] = test
            case CollectionFailed(nodeid=nodeid, message=message):
                self.errors.append(CollectionError(nodeid=nodeid, message=message))
            case TestStarted(nodeid=nodeid):
                self.running[nodeid] = event
            case TestFinished(result=result):
                self.finish_test(result)
            case WorldStarted():
                self.worlds[event.world_id] = WorldSpan(
                    world_id=event.world_id, shape=event.shape, slots=event.slots, started_at_s=event.at_s
                )
            case WorldEnded():
                self.end_world(event)
            case Noted(message=message, nodeid=nodeid):
                self.notes.append(f"{nodeid}: {message}" if nodeid else message)
            case ShardJoined(shard=shard):
                self.shards.append(shard)
            # The command may append a second one (`journal.record_end`), and the last one counts.
            case RunFinished():
                self.finished = event

    def start(self, event: RunStarted) -> None:
        """Merge the first event of the supervisor, which has the user's command, with that of the controller."""
        if event.schema_version != SCHEMA_VERSION:
            self.notes.append(
                f"a part of this journal is of version {event.schema_version}, and this disttest ({SCHEMA_VERSION}) may "
                f"misread it: read it with the disttest that wrote it, {event.disttest}"
            )
        if self.called_at_s is not None:
            # A further pytest process of the same run.
            return
        # The second such event is the controller's.
        if self.started is not None:
            self.called_at_s = self.started.at_s
            asked = self.started.invocation
            # Plugins of the controller add data, for example about a selection of tests.
            invocation = msgspec.structs.replace(asked, data={**event.invocation.data, **asked.data})
            # The controller's arguments are those that the command made for pytest.
            event = msgspec.structs.replace(event, argv=self.started.argv, invocation=invocation)
        self.started = event

    def finish_test(self, result: TestResult) -> None:
        """Fold the result of an attempt."""
        self.running.pop(result.nodeid, None)
        add_attempt(self.attempts.setdefault(result.nodeid, []), result)

    def end_world(self, event: WorldEnded) -> None:
        """Fold the end of a world."""
        span = self.worlds.get(event.world_id)
        if span is not None:
            self.worlds[event.world_id] = msgspec.structs.replace(
                span, ended_at_s=event.at_s, reason=event.reason
            )

    def unfinished(self, nodeid: str, reason: str) -> TestResult:
        """Return the failure of an attempt that will not finish."""
        started, done = self.running.get(nodeid), len(self.attempts.get(nodeid, ()))
        result = unfinished(nodeid, started, reason, at_s=self.last_at_s, done=done)
        return msgspec.structs.replace(result, world_id=started.world_id) if started else result

    def crash(self, how: str, *, at_s: float) -> tuple[TestResult, ...]:
        """Return the failure of the ordinary test that ended the pytest process, and results of the remaining tests.

        Args:
            how: exit status of the process, as text.
            at_s: time of its end.
        """
        # Imported late: large, and needed only after a crash.
        from disttest.results.verdict import not_run

        # A test in a world does not run in the pytest process.
        started = next((each for each in self.running.values() if not each.world_id), None)
        if started is None:
            return ()
        message = (
            f"the test ended the pytest process with {how}; --isolate-files runs ordinary tests in processes of their own, "
            "so that the others run"
        )
        failed = unfinished(started.nodeid, started, "", at_s=at_s)
        # Other unfinished tests are infrastructure errors. This one has ended the process itself, so it has
        # failed.
        failed = msgspec.structs.replace(failed, cause=Cause.TEST, message=message)
        left = (nodeid for nodeid in self.tests if nodeid not in self.attempts and nodeid != started.nodeid)
        reason = f"{started.nodeid} ended the pytest process with {how}"
        return (failed, *(not_run(nodeid, reason, at_s=at_s) for nodeid in left))

    def outcome(self, test: TestCase, reason: str) -> TestOutcome:
        """Return the outcome of a test if the run ends for this reason."""
        attempts = self.attempts.get(test.nodeid, [])
        # A retry that will not finish becomes an attempt, too: the failure before it must not look like the
        # final result.
        if test.nodeid in self.running or not attempts:
            attempts = [*attempts, self.unfinished(test.nodeid, reason)]
        return TestOutcome(test=test, attempts=tuple(attempts))

    def _slots(self) -> int:
        """Number of slots, including those lent to worlds while the machine was idle."""
        own = self.started.slots if self.started else 0
        beside = self.started.cpu_slots if self.started else 0
        used = {slot for world in self.worlds.values() for slot in world.slots}
        # With CPU slots next to GPUs, `slots` counts the GPUs. Only CPU slots are borrowed, and cost counts
        # GPUs.
        return own if beside or not own else max(own, len(used))

    def result(self) -> RunResult:
        """Return the result so far. A test that must have a result and has not finished has failed, with the reason."""
        started, finished = self.started, self.finished
        # A test without a result must never be missing from a report.
        reason = (finished.reason or "the run ended") if finished else DIED_EARLY
        return RunResult(
            run_id=started.run_id if started else "",
            argv=started.argv if started else (),
            root=started.root if started else "",
            hardware=started.hardware if started else Hardware(cpus=0),
            slots=self._slots(),
            disttest=started.disttest if started else "",
            started_at_s=started.at_s if started else self.last_at_s,
            ended_at_s=self.last_at_s,
            exit_code=finished.exit_code if finished else 3,
            reason=finished.reason if finished else DIED_EARLY,
            tests=tuple(self.outcome(test, reason) for test in self.tests.values()),
            collection_errors=tuple(self.errors),
            worlds=tuple(self.worlds.values()),
            notes=tuple(self.notes),
            shards=tuple(self.shards),
            plan_id=started.plan_id if started else "",
            shard=started.shard if started else None,
            invocation=started.invocation if started else Invocation(),
            cpu_slots=started.cpu_slots if started else 0,
            called_at_s=self.called_at_s,
        )


def unfinished(
    nodeid: str, started: TestStarted | None, when: str, *, at_s: float, done: int = 0
) -> TestResult:
    """Return the failure of an attempt that will not finish.

    Args:
        nodeid: id of the test.
        started: start of the attempt, if it started.
        when: description of the event that ended it, as a clause.
        at_s: time of that event.
        done: number of finished attempts before it.
    """
    return TestResult(
        nodeid=nodeid,
        outcome=Outcome.ERROR,
        cause=Cause.INFRASTRUCTURE,
        attempt=started.attempt if started else done + 1,
        started_at_s=started.at_s if started else at_s,
        duration_s=at_s - started.at_s if started else 0.0,
        message=did_not_finish(when, was_running=started is not None),
    )


def did_not_finish(when: str, *, was_running: bool) -> str:
    """Format the message of an unfinished test, here and for nodes; ``when`` is a clause."""
    return f"did not finish: it {'was running' if was_running else 'had not started'} when {when}"


def fold(events: Iterable[AnyEvent]) -> RunResult:
    """Fold a run's events into its result. A scheduled test that did not finish has failed, with the reason.

    A journal without its first event (cut, or mixed) folds as well: unknown facts are empty.
    """
    folding = Folding()
    for event in events:
        folding.handle(event)
    return folding.result()


def add_attempt(attempts: list[TestResult], result: TestResult) -> None:
    """Add the result of an attempt to those of its test."""
    # If a rank dies after its test was judged, a second result turns that attempt red.
    if attempts and attempts[-1].attempt == result.attempt:
        attempts.pop()
    attempts.append(result)
