"""The client's side of a spanning job, against nodes that exist in this process only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from disttest.cluster.book import Book
from disttest.cluster.conductor import Expected, Limits, conduct
from disttest.cluster.fake import FakeLauncher
from disttest.cluster.job import JobKind, JobShape, JobSpec
from disttest.cluster.spanning import SpanningConductor
from disttest.cluster.wire import (
    CancelJob,
    CloseWorld,
    FinishJob,
    JoinWorld,
    Listening,
    NodeDone,
    NodeReady,
    OpenWorld,
    RankFailed,
    RunShare,
    ShareDone,
    ShareEnded,
    ShareUp,
    TakeJob,
    ToNode,
    Versions,
)
from disttest.model import Cause, Outcome, RankEnd, RankRecord, TestCase, TestResult, WorldShape
from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, Journal, read_events
from disttest.running.protocol import Message

VERSIONS = Versions(disttest="1", python="3", torch="2")


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
                return [ShareUp(world=world)]
            case RunShare(test=test):
                return self.run(node, test)
            case CloseWorld(world=world):
                return [ShareEnded(world=world)]
            case FinishJob() | CancelJob():
                return [NodeDone()]
        return []

    def take(self, node: int) -> Sequence[Message]:
        return [NodeReady(host=f"n{node + 1}", at_s=0.0, versions=VERSIONS, digest="d")]

    def run(self, node: int, test: int) -> Sequence[Message]:
        return [self.done(node, test)]

    def done(self, node: int, test: int, *, bad: int | None = None) -> ShareDone:
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
        return ShareDone(test=test, ranks=ranks, started_at_s=1.0, duration_s=0.5, healthy=bad is None)


def results_of(node: Node, folder: Path, *, clock_step_s: float = 0.0) -> dict[str, TestResult]:
    now_s = [0.0]

    def clock() -> float:
        now_s[0] += clock_step_s
        return now_s[0]

    journal = Journal(folder / FILE_NAME)
    book = Book(journal, folder, lambda _line: None)
    from disttest.results.events import TestCollected

    for test in JOB.tests:
        book.event(TestCollected(at_s=0.0, test=test))
    conductor = SpanningConductor(JOB, book, Expected(versions=VERSIONS, digest="d"), Limits(), clock)
    conduct(FakeLauncher(node).start(JOB), conductor, lambda: "")
    journal.close()
    return {t.test.nodeid: t.final for t in fold(read_events(folder / FILE_NAME)).tests}


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
                    ShareEnded(world=self.world, failure="the world process on node n2 ended with SIGKILL")
                ]
            return [self.done(node, test)]

        def __call__(self, node: int, order: ToNode) -> Sequence[Message]:
            if isinstance(order, CloseWorld) and node == 1 and order.world == 1:
                return []
            return super().__call__(node, order)

    results = results_of(Dying(), tmp_path)
    assert results["one"].cause is Cause.INFRASTRUCTURE
    assert "ranks 2-3 of 4 on node n2 left no record: the world process" in results["one"].message
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
