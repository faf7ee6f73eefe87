"""The client's side of a spanning job, against nodes that exist in this process only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from fake_scheduler import VERSIONS, FakeScheduler, setting_of

from disttest.extras.cluster.client.conductor import conduct
from disttest.extras.cluster.client.spanning import SpanningConductor
from disttest.extras.cluster.protocol.job import JobKind, JobShape, JobSpec
from disttest.extras.cluster.protocol.launcher import JobOutcome, JobState
from disttest.extras.cluster.protocol.wire import (
    Alive,
    CancelJob,
    CloseWorld,
    EndShare,
    FinishJob,
    JoinWorld,
    Listening,
    NodeDone,
    NodeReady,
    OpenWorld,
    PartitionDone,
    PartitionEnded,
    PartitionUp,
    RankFailed,
    RankOutput,
    RunShare,
    StillHere,
    TakeJob,
    ToNode,
)
from disttest.model import Cause, Outcome, RankEnd, RankRecord, TestCase, TestResult, WorldShape
from disttest.options.run import RunOptions
from disttest.plugins.masking.masker import Masker
from disttest.results.events import TestCollected, TestFinished
from disttest.results.fold import RunResult, TestOutcome, fold
from disttest.results.journal import FILE_NAME, Journal, read_events
from disttest.runtime.messages.protocol import Message


def a_test(name: str) -> TestCase:
    shape = WorldShape(size=4, backend="gloo", nodes=2)
    return TestCase(
        nodeid=name, slug=name, classname="", name=name, file="t.py", line=1, suite="t", world=shape
    )


JOB = JobSpec(
    job_id="j1",
    run_id="r",
    kind=JobKind.WORLD,
    shape=JobShape(nodes=2, ranks_per_node=2),
    tests=(a_test("one"), a_test("two"), a_test("three")),
    targets=(),
    limit_s=60.0,
    worlds=((0, 1), (2,)),
)


class Node:
    """A node that works; what a test changes is a method."""

    def __init__(self) -> None:
        self.orders: list[ToNode] = []
        self.world = 0
        self.attempts: dict[int, int] = {}
        """Of each test, as the last world was told."""

    def __call__(self, node: int, order: ToNode) -> Sequence[Message]:
        if node == 0:
            self.orders.append(order)
        match order:
            case TakeJob():
                return self.take(node)
            case OpenWorld(world=world):
                return [Listening(world=world, address="10.0.0.1", port=1)] if node == 0 else []
            case JoinWorld(world=world):
                self.world = world
                self.attempts.update(zip(order.tests, order.attempts, strict=True))
                return [PartitionUp(world=world)]
            case RunShare(test=test):
                return self.run(node, test)
            case CloseWorld(world=world):
                return [PartitionEnded(world=world)]
            case FinishJob() | CancelJob():
                return [NodeDone()]
        return []

    def take(self, node: int) -> Sequence[Message]:
        return [NodeReady(host=f"n{node + 1}", at_s=0.0, versions=VERSIONS, digest="d")]

    def run(self, node: int, test: int) -> Sequence[Message]:
        return [self.done(node, test)]

    def done(self, node: int, test: int, *, bad: int | None = None) -> PartitionDone:
        ranks = tuple(
            RankRecord(
                rank=2 * node + local,
                end=RankEnd.REPORTED,
                phase="call",
                outcome=Outcome.FAILED if local == bad else Outcome.PASSED,
                message="boom" if local == bad else "",
                failed_after_s=0.1 if local == bad else None,
            )
            for local in range(2)
        )
        return PartitionDone(
            test=test,
            ranks=ranks,
            started_at_s=1.0,
            duration_s=0.5,
            healthy=bad is None,
            attempt=self.attempts[test],
        )


def results_of(node: Node, folder: Path, *, clock_step_s: float = 0.0) -> dict[str, TestResult]:
    return {
        t.test.nodeid: t.final for t in run_of(node, folder, RunOptions(), clock_step_s=clock_step_s).tests
    }


def run_of(
    node: Node,
    folder: Path,
    options: RunOptions,
    *,
    clock_step_s: float = 0.1,
    tell: Callable[[str], None] = lambda _line: None,
    end: JobOutcome | None = None,
) -> RunResult:
    now_s = [0.0]

    def clock() -> float:
        now_s[0] += clock_step_s
        return now_s[0]

    journal = Journal(folder / FILE_NAME)
    setting = setting_of(JOB, journal, options=options, clock=clock, tell=tell)
    for test in JOB.tests:
        setting.recorder.event(TestCollected(at_s=0.0, test=test))
    conductor = SpanningConductor(setting)
    conduct(FakeScheduler(node, end=end).start(JOB), conductor, lambda: "")
    journal.close()
    return fold(read_events(folder / FILE_NAME))


def test_worlds_and_tests_one_after_another(tmp_path: Path) -> None:
    node = Node()
    results = results_of(node, tmp_path)
    assert {result.outcome for result in results.values()} == {Outcome.PASSED}
    said = [type(order).__name__ for order in node.orders]
    world = ["OpenWorld", "JoinWorld"]
    assert said == [
        "TakeJob",
        *[*world, "RunShare", "RunShare", "CloseWorld"],
        *[*world, "RunShare", "CloseWorld"],
        "FinishJob",
    ]


def test_a_failure_is_told_to_all_once_and_costs_the_world_not_the_job(tmp_path: Path) -> None:
    class Failing(Node):
        def run(self, node: int, test: int) -> Sequence[Message]:
            if test:
                return [self.done(node, test)]
            return [RankFailed(test=0), self.done(node, 0, bad=1 if node else None)]

    node = Failing()
    results = results_of(node, tmp_path)
    assert [results[name].outcome for name in ("one", "two", "three")] == [
        Outcome.FAILED,
        Outcome.PASSED,
        Outcome.PASSED,
    ]
    assert (results["one"].culprit, results["one"].cause) == (3, Cause.TEST)
    said = [type(order).__name__ for order in node.orders]
    assert said.count("EndShare") == 1
    assert said.count("OpenWorld") == 3


def test_a_world_process_that_dies_costs_its_test_and_nothing_else(tmp_path: Path) -> None:
    class Dying(Node):
        def run(self, node: int, test: int) -> Sequence[Message]:
            if test == 0 and node == 1:
                return [
                    PartitionEnded(
                        world=self.world, failure="the world process on node n2 ended with SIGKILL"
                    )
                ]
            return [self.done(node, test)]

        def __call__(self, node: int, order: ToNode) -> Sequence[Message]:
            if isinstance(order, CloseWorld) and node == 1 and order.world == 1:
                return []
            return super().__call__(node, order)

    results = results_of(Dying(), tmp_path)
    assert results["one"].cause is Cause.INFRASTRUCTURE
    assert "ranks 2, 3 of 4 on node n2 left no record: the world process" in results["one"].message
    assert {results["two"].outcome, results["three"].outcome} == {Outcome.PASSED}


@pytest.mark.parametrize(
    ("bad", "culprit", "cause"), [(1, 3, Cause.TEST), (None, None, Cause.INFRASTRUCTURE)]
)
def test_a_world_process_that_dies_after_its_record_keeps_a_failure_but_no_pass(
    tmp_path: Path, bad: int | None, culprit: int | None, cause: Cause
) -> None:
    class DyingLate(Node):
        def run(self, node: int, test: int) -> Sequence[Message]:
            if test or node == 0:
                return [] if test == 0 else [self.done(node, test)]
            ended = PartitionEnded(
                world=self.world, failure="the world process on node n2 ended with SIGKILL"
            )
            return [self.done(node, test, bad=bad), ended, RankFailed(test=test)]

        def __call__(self, node: int, order: ToNode) -> Sequence[Message]:
            if isinstance(order, EndShare) and node == 0:
                return [self.done(node, order.test)]
            if isinstance(order, CloseWorld) and node == 1 and order.world == 1:
                return []
            return super().__call__(node, order)

    results = results_of(DyingLate(), tmp_path)
    assert (results["one"].cause, results["one"].culprit) == (cause, culprit)
    assert {results["two"].outcome, results["three"].outcome} == {Outcome.PASSED}


def test_nodes_with_other_sources_run_nothing(tmp_path: Path) -> None:
    class Other(Node):
        def take(self, node: int) -> Sequence[Message]:
            return [NodeReady(host=f"n{node + 1}", at_s=0.0, versions=VERSIONS, digest="e" if node else "d")]

    node = Other()
    results = results_of(node, tmp_path)
    assert all(result.message.startswith("refused: the tests on node n2") for result in results.values())
    assert not any(isinstance(order, RunShare) for order in node.orders)


def test_a_node_that_falls_silent_is_lost_and_the_others_records_are_kept(tmp_path: Path) -> None:
    class Silent(Node):
        def run(self, node: int, test: int) -> Sequence[Message]:
            return [] if node else [self.done(node, test)]

    results = results_of(Silent(), tmp_path, clock_step_s=1.0)
    assert results["one"].cause is Cause.INFRASTRUCTURE
    assert "left no record: node lost: node n" in results["one"].message
    assert results["two"].message.startswith("did not start: its job ended before: node lost")


@pytest.mark.parametrize(
    ("ended", "reason"),
    [(False, "node n1 has been silent for 30 s"), (True, "the agent of node n1 has ended: killed")],
)
def test_the_time_in_which_the_client_was_stopped_does_not_count_for_its_nodes(
    tmp_path: Path, ended: bool, reason: str
) -> None:
    now_s = [0.0]
    conductor = SpanningConductor(setting_of(JOB, Journal(tmp_path / FILE_NAME), clock=lambda: now_s[0]))
    for node in (0, 1):
        conductor.receive(node, NodeReady(host=f"n{node}", at_s=0.0, versions=VERSIONS, digest="d"))
    if ended:
        conductor.node_ended(1, "killed")

    # Of all lines that have come meanwhile, that of one node is the first.
    now_s[0] = 10_000.0
    conductor.receive(0, Alive())
    said = conductor.tick()
    assert conductor.failure is None
    assert any(isinstance(order, StillHere) for order in said), "the nodes wait for a word of the client"

    while conductor.failure is None:
        assert now_s[0] < 10_100.0
        now_s[0] += 1.0
        conductor.receive(0, Alive())
        conductor.tick()
    assert conductor.failure.reason == reason


class FailsAtFirst(Node):
    """Rank 3 fails the first test, in as many attempts as it is told."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.times = times

    def run(self, node: int, test: int) -> Sequence[Message]:
        bad = test == 0 and self.attempts[0] <= self.times
        return [self.done(node, test, bad=1 if bad and node else None)]


def verdicts(folder: Path) -> int:
    """How many were written down, the revised ones included."""
    return sum(isinstance(event, TestFinished) for event in read_events(folder / FILE_NAME))


def attempts(run: RunResult, name: str = "one") -> list[Outcome]:
    return [attempt.outcome for attempt in outcome(run, name).attempts]


def outcome(run: RunResult, name: str = "one") -> TestOutcome:
    return next(test for test in run.tests if test.test.nodeid == name)


class TestRetries:
    def test_what_passes_in_a_new_world_is_flaky_and_both_attempts_are_kept(self, tmp_path: Path) -> None:
        node = FailsAtFirst()
        run = run_of(node, tmp_path, RunOptions(retries=1))

        assert [Outcome.FAILED, Outcome.PASSED] == attempts(run)
        assert [outcome(run)] == list(run.flaky)
        first, second = outcome(run).attempts
        assert ("j1.w1", 1, "j1.w4", 2) == (first.world_id, first.attempt, second.world_id, second.attempt)
        assert [Outcome.PASSED] == attempts(run, "two") == attempts(run, "three")
        # The others first; then the test alone, in a world of its own.
        joined = [(order.tests, order.attempts) for order in node.orders if isinstance(order, JoinWorld)]
        assert [((0, 1), (1, 1)), ((1,), (1,)), ((2,), (1,)), ((0,), (2,))] == joined

    def test_a_failure_that_stays_is_tried_as_often_as_was_asked_for(self, tmp_path: Path) -> None:
        run = run_of(FailsAtFirst(times=9), tmp_path, RunOptions(retries=2))

        assert 3 * [Outcome.FAILED] == attempts(run)
        assert [1, 2, 3] == [attempt.attempt for attempt in outcome(run).attempts]
        assert () == run.flaky
        assert (3, Cause.TEST) == (outcome(run).final.culprit, outcome(run).final.cause)

    def test_a_rank_that_dies_late_in_a_failed_attempt_is_no_record_of_the_next(self, tmp_path: Path) -> None:
        class DiesLate(FailsAtFirst):
            def __call__(self, node: int, order: ToNode) -> Sequence[Message]:
                late: list[Message] = []
                if isinstance(order, CloseWorld) and order.world == 1:
                    late = [self.done(node, 0, bad=0)]
                return [*late, *super().__call__(node, order)]

        run = run_of(DiesLate(), tmp_path, RunOptions(retries=1))

        assert [Outcome.FAILED, Outcome.PASSED] == attempts(run)
        assert 4 == verdicts(tmp_path)

    def test_a_rank_that_dies_after_its_test_was_green_gets_that_test_another_attempt(
        self, tmp_path: Path
    ) -> None:
        class DiesAfterwards(Node):
            def __call__(self, node: int, order: ToNode) -> Sequence[Message]:
                late: list[Message] = []
                if isinstance(order, CloseWorld) and order.world == 1:
                    late = [self.done(node, 1, bad=0)]
                return [*late, *super().__call__(node, order)]

        run = run_of(DiesAfterwards(), tmp_path, RunOptions(retries=1))

        assert [Outcome.FAILED, Outcome.PASSED] == attempts(run, "two")
        assert [("one",), ()] == [each.after for each in outcome(run, "two").attempts]
        # Green, then red as a rank died, then the second attempt: each judged once.
        assert 5 == verdicts(tmp_path)
        assert attempts(run_of(DiesAfterwards(), _sub(tmp_path), RunOptions()), "two") == [Outcome.FAILED]

    def test_a_broken_world_has_a_budget_and_a_pause_of_its_own(self, tmp_path: Path) -> None:
        class LosesItsWorld(Node):
            def run(self, node: int, test: int) -> Sequence[Message]:
                if test == 0 and node == 1 and self.attempts[0] == 1:
                    return [PartitionEnded(world=self.world, failure="the world process on node n2 is gone")]
                return [self.done(node, test)]

            def __call__(self, node: int, order: ToNode) -> Sequence[Message]:
                if isinstance(order, CloseWorld) and node == 1 and order.world == 1:
                    return []
                return super().__call__(node, order)

        run = run_of(LosesItsWorld(), tmp_path, RunOptions(infra_retries=1), clock_step_s=0.001)

        assert [Outcome.ERROR, Outcome.PASSED] == attempts(run)
        assert Cause.INFRASTRUCTURE is outcome(run).attempts[0].cause
        assert () == run.flaky, "what a broken machine has spoiled says nothing of the test"
        assert any(note.startswith("one: infrastructure, tried again in ") for note in run.notes)
        alone = run_of(LosesItsWorld(), _sub(tmp_path), RunOptions(retries=3))
        assert [Outcome.ERROR] == attempts(alone)

    def test_a_job_that_ends_in_a_second_attempt_leaves_the_first_failure(self, tmp_path: Path) -> None:
        class FallsSilent(FailsAtFirst):
            def run(self, node: int, test: int) -> Sequence[Message]:
                return [] if test == 0 and self.attempts[0] == 2 else super().run(node, test)

        run = run_of(FallsSilent(), tmp_path, RunOptions(retries=1, infra_retries=1), clock_step_s=1.0)

        assert [Outcome.FAILED, Outcome.FAILED] == attempts(run)
        final = outcome(run).final
        assert (2, Cause.TEST) == (final.attempt, final.cause)
        assert "boom" in final.message
        assert final.message.endswith("(attempt 2 was cut short)")

    def test_a_job_that_ends_before_it_lets_the_failure_stand(self, tmp_path: Path) -> None:
        class FallsSilent(FailsAtFirst):
            def run(self, node: int, test: int) -> Sequence[Message]:
                return [] if test == 2 else super().run(node, test)

        run = run_of(FallsSilent(), tmp_path, RunOptions(retries=1), clock_step_s=1.0)

        assert [Outcome.FAILED] == attempts(run)
        assert any(note.startswith("one: not tried again: its job ended before: ") for note in run.notes)


def _sub(folder: Path) -> Path:
    made = folder / "other"
    made.mkdir()
    return made


class Talks(Node):
    """Each node prints before it is done."""

    def run(self, node: int, test: int) -> Sequence[Message]:
        lines = (f"first of {test}", "hunter22 knows")
        return [RankOutput(rank=2 * node, lines=lines), self.done(node, test)]


def test_what_ranks_print_is_tagged_in_front_of_the_verdict_and_what_is_to_be_hidden_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    masker = Masker()
    masker.hide(["hunter22"])
    monkeypatch.setattr("disttest.runtime.messages.protocol.outgoing", masker)
    told: list[str] = []
    run_of(Talks(), tmp_path, RunOptions(), tell=told.append)
    zero, two = "\x1b[36m[rank 0]\x1b[0m", "\x1b[32m[rank 2]\x1b[0m"
    shown = [f"{zero} first of 0", f"{zero} *** knows", f"{two} first of 0", f"{two} *** knows"]
    lines = "\n".join(told).splitlines()
    assert shown == lines[:4]
    assert lines[4].startswith("PASSED   one")
    assert "*** knows" not in (tmp_path / FILE_NAME).read_text(), "it comes again with the log"


def test_nodes_that_the_scheduler_has_ended_leave_the_word_to_it(tmp_path: Path) -> None:
    """Each says that it was told to end; why is known when the job has ended."""

    class Ended(Node):
        def run(self, node: int, test: int) -> Sequence[Message]:
            done = self.done(node, test)
            killed = [msgspec.structs.replace(rank, end=RankEnd.KILLED, outcome=None) for rank in done.ranks]
            told = {"cancelled": "SIGTERM", "by_scheduler": True}
            return [msgspec.structs.replace(done, ranks=tuple(killed), healthy=False, **told)]

    end = JobOutcome(state=JobState.EVICTED, reason="pod p on node n2: it was deleted")
    run = run_of(Ended(), tmp_path, RunOptions(), end=end)

    first = run.tests[0].final
    assert (first.outcome, first.cause) == (Outcome.ERROR, Cause.INFRASTRUCTURE)
    assert "pod p on node n2: it was deleted" in first.message
