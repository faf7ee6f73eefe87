"""The client's side of a lease: what the node's own run writes down is taken over, and held against the records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from fake_scheduler import VERSIONS, FakeScheduler, setting_of

from disttest.extras.cluster.client.cluster_session import _conclude
from disttest.extras.cluster.client.conductor import conduct
from disttest.extras.cluster.client.job_recorder import JobRecorder
from disttest.extras.cluster.client.leasing import LeaseConductor
from disttest.extras.cluster.limits import GOODBYE_S, SCHEDULERS_WORD_S
from disttest.extras.cluster.node.assignment import NodeAssignment
from disttest.extras.cluster.node.work import LeaseWork, timings_journal
from disttest.extras.cluster.protocol.job import JobKind, JobShape, JobSpec
from disttest.extras.cluster.protocol.launcher import JobOutcome, JobState
from disttest.extras.cluster.protocol.wire import (
    JournalLine,
    NodeDone,
    NodeReady,
    TakeJob,
    ToNode,
)
from disttest.model import Cause, Outcome, RankEnd, RankRecord, TestCase, TestResult, WorldShape
from disttest.outgoing import outgoing
from disttest.plugins.masking.masker import Masker
from disttest.results.directory import Home
from disttest.results.durations import read_timings
from disttest.results.events import AnyEvent, Event, RunFinished, TestCollected, TestFinished, TestStarted
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, Journal, read_events
from disttest.runtime.messages.protocol import Message

ENDED_BY_SCHEDULER = NodeDone(reason="it was asked to end", by_scheduler=True)
LOST = JobOutcome(state=JobState.NODE_LOST, reason="gone")


def a_test(name: str) -> TestCase:
    shape = WorldShape(size=1, backend="gloo")
    return TestCase(
        nodeid=name, slug=name, classname="", name=name, file="t.py", line=1, suite="t", world=shape
    )


JOB = JobSpec(
    job_id="j1",
    run_id="r",
    kind=JobKind.LEASE,
    shape=JobShape(nodes=1, ranks_per_node=1),
    tests=(a_test("one"), a_test("two")),
    targets=(),
    limit_s=60.0,
)


HERE = NodeAssignment(scheduler="local", node=0, nodes=1, host="n1", gpus=(), address="", interface="")


def started(name: str, attempt: int = 1) -> Event:
    return TestStarted(at_s=5.0, nodeid=name, attempt=attempt, world_id=f"w{attempt}")


def finished(name: str, *, attempt: int = 1, bad: bool = False, again: bool = False) -> Event:
    outcome = Outcome.FAILED if bad else Outcome.PASSED
    result = TestResult(
        nodeid=name,
        outcome=outcome,
        cause=Cause.TEST if bad else None,
        attempt=attempt,
        message="boom" if bad else "",
        ranks=(RankRecord(rank=0, end=RankEnd.REPORTED, outcome=outcome),),
        world_id=f"w{attempt}",
    )
    return TestFinished(at_s=6.0, result=result, again=again)


class NeverStops:
    """The client has no reason to end the run."""

    signal = None

    def __call__(self) -> str:
        return ""


def run_of(folder: Path, *events: Event, end: JobOutcome | None = None) -> RunResult:
    """What becomes of a lease whose node writes these events, and then says that it is done (or ends like that)."""
    return leased(folder, *events, end=end)[0]


def leased(folder: Path, *events: Event, end: JobOutcome | None = None) -> tuple[RunResult, JobRecorder]:
    """The same, with the recorder."""

    def answer(_node: int, order: ToNode) -> Sequence[Message]:
        if not isinstance(order, TakeJob):
            return []
        ready = NodeReady(host="n1", at_s=0.0, versions=VERSIONS, digest="d")
        lines = [JournalLine(event=cast("AnyEvent", event)) for event in events]
        return [ready, *lines, *([] if end else [NodeDone()])]

    journal = Journal(folder / FILE_NAME)
    setting = setting_of(JOB, journal)
    for test in JOB.tests:
        setting.recorder.event(TestCollected(at_s=0.0, test=test))
    conductor = LeaseConductor(setting)
    conduct(FakeScheduler(answer, end=end).start(JOB), conductor, lambda: "")
    journal.close()
    return fold(read_events(folder / FILE_NAME)), setting.recorder


def attempts(run: RunResult, name: str) -> list[tuple[Outcome, str]]:
    return [(each.outcome, each.message) for t in run.tests if t.test.nodeid == name for each in t.attempts]


TWO = (started("two"), finished("two"))


def test_attempts_of_the_node_are_attempts_of_the_run(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        *(started("one"), finished("one", bad=True, again=True), *TWO),
        *(started("one", 2), finished("one", attempt=2)),
    )

    assert [(Outcome.FAILED, "boom"), (Outcome.PASSED, "")] == attempts(run, "one")
    assert ["one"] == [test.test.nodeid for test in run.flaky]
    assert () == run.notes
    assert ["j1.w1", "j1.w2"] == [each.world_id for each in run.flaky[0].attempts]
    kept = [e for e in read_events(tmp_path / FILE_NAME) if isinstance(e, TestFinished)]
    assert [True, False, False] == [event.again for event in kept]


def test_a_node_that_ends_early_without_a_bad_result_ends_the_run_early(tmp_path: Path) -> None:
    not_run = TestFinished(at_s=6.0, result=TestResult(nodeid="two", outcome=Outcome.NOT_RUN))
    end = RunFinished(at_s=7.0, exit_code=2, reason="budget used")

    run, recorder = leased(tmp_path, started("one"), finished("one"), not_run, end)

    assert (2, "budget used") == _conclude(run, cast("Any", NeverStops()), recorder)


def test_the_end_of_the_nodes_command_counts_and_not_that_of_its_pytest(tmp_path: Path) -> None:
    spoiled = finished("two", bad=True)
    result = msgspec.structs.replace(cast("TestFinished", spoiled).result, outcome=Outcome.ERROR)
    result = msgspec.structs.replace(result, cause=Cause.INFRASTRUCTURE)
    ends = [RunFinished(at_s=7.0 + code, exit_code=code) for code in (1, 7)]
    events = [started("one"), finished("one"), TestFinished(at_s=6.0, result=result), *ends]

    run, recorder = leased(tmp_path, *events)

    assert 7 == _conclude(run, cast("Any", NeverStops()), recorder).exit_code


def test_the_end_of_a_run_that_the_scheduler_ended_does_not_count(tmp_path: Path) -> None:
    ends = [RunFinished(at_s=7.0, exit_code=2), RunFinished(at_s=8.0, exit_code=143)]

    run, recorder = leased(
        tmp_path, started("one"), finished("one"), *ends, end=JobOutcome(state=JobState.PREEMPTED)
    )

    assert 7 == _conclude(run, cast("Any", NeverStops()), recorder).exit_code


def test_an_unreadable_line_of_a_nodes_journal_is_noted(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("disttest.extras.cluster.node.work.spawn_child", lambda *_, **__: None)
    work = LeaseWork(JOB, HERE, tmp_path)
    assert [] == [*work.lines()]

    one, two = (msgspec.json.encode(event) for event in (started("one"), finished("one")))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / FILE_NAME).write_bytes(b"\n".join([one, two[:20], two, b""]))
    sent = [msgspec.json.decode(line) for line in work.lines()]

    events = [each["event"] for each in sent if each["kind"] == "JournalLine"]
    assert ["test_started", "noted", "test_finished"] == [each["event"] for each in events]
    assert events[1]["message"].startswith("events.jsonl:2: skipped, not an event: ")


def test_a_journal_line_that_is_not_an_event_ends_the_job(tmp_path: Path) -> None:
    run = run_of(tmp_path, cast("Event", {"event": "unknown"}), *TWO)

    ((outcome, message),) = attempts(run, "one")
    assert Outcome.ERROR is outcome
    assert "node lost: node 0: not a message" in message


def test_a_lease_that_is_lost_says_which_tests_were_running(tmp_path: Path) -> None:
    run = run_of(tmp_path, started("one"), started("two"), finished("two"), end=LOST)

    assert [(Outcome.ERROR, "did not finish: it was running when its job ended: node lost: gone")] == (
        attempts(run, "one")
    )
    assert [(Outcome.PASSED, "")] == attempts(run, "two")


def test_what_was_tried_again_when_the_lease_was_lost_has_failed(tmp_path: Path) -> None:
    failed = (started("one"), finished("one", bad=True, again=True))
    run = run_of(tmp_path, *failed, started("one", 2), end=LOST)

    assert [(Outcome.FAILED, "boom"), (Outcome.FAILED, "boom (attempt 2 was cut short)")] == (
        attempts(run, "one")
    )
    assert [Outcome.ERROR] == [outcome for outcome, _ in attempts(run, "two")]


def test_what_was_to_be_tried_again_when_the_lease_was_lost_has_failed(tmp_path: Path) -> None:
    run = run_of(tmp_path, started("one"), finished("one", bad=True, again=True), *TWO, end=LOST)

    assert [(Outcome.FAILED, "boom")] == attempts(run, "one")
    assert any(note.startswith("one: not tried again: ") for note in run.notes)


def test_a_lease_schedules_by_what_the_client_knows(tmp_path: Path) -> None:
    file = tmp_path / "timings.jsonl"
    job = msgspec.structs.replace(JOB, expected_s=(3.0, 0.5), failed=(1,))
    file.write_bytes(timings_journal(job))

    timings, warnings = read_timings([file], now_s=10.0, hardware="some GPU, and another world")

    assert () == warnings
    assert [3.0, 0.5] == [timings.expect(test) for test in JOB.tests]
    assert {"two"} == timings.failed_among(JOB.tests)


@pytest.mark.parametrize(
    ("done", "state", "words"),
    [
        (ENDED_BY_SCHEDULER, JobState.TIME_LIMIT, "time limit: its minutes are over"),
        (ENDED_BY_SCHEDULER, JobState.PREEMPTED, "preempted: its minutes are over"),
        (ENDED_BY_SCHEDULER, JobState.CANCELLED, "node lost: node n1: it was asked to end"),
        (
            NodeDone(reason="the disk is full"),
            JobState.TIME_LIMIT,
            "node lost: node n1: the disk is full",
        ),
    ],
)
def test_the_schedulers_word_counts_where_it_told_the_node_to_end(
    tmp_path: Path, done: NodeDone, state: JobState, words: str
) -> None:
    journal = Journal(tmp_path / FILE_NAME)
    setting = setting_of(JOB, journal)
    for test in JOB.tests:
        setting.recorder.event(TestCollected(at_s=0.0, test=test))
    conductor = LeaseConductor(setting)
    conductor.receive(0, NodeReady(host="n1", at_s=0.0, versions=VERSIONS, digest="d"))
    conductor.receive(0, done)
    conductor.close(JobOutcome(state=state, reason="its minutes are over"))
    journal.close()

    (message, _) = [test.final.message for test in fold(read_events(tmp_path / FILE_NAME)).tests]
    assert words in message


@pytest.mark.parametrize(
    ("done", "limit_s"),
    [
        (NodeDone(), GOODBYE_S),
        (NodeDone(reason="the disk is full"), GOODBYE_S),
        (ENDED_BY_SCHEDULER, SCHEDULERS_WORD_S),
    ],
)
def test_the_scheduler_has_longer_for_its_word_where_only_it_knows_why(
    tmp_path: Path, done: NodeDone, limit_s: float
) -> None:
    now_s = [0.0]
    conductor = LeaseConductor(setting_of(JOB, Journal(tmp_path / FILE_NAME), clock=lambda: now_s[0]))
    conductor.receive(0, done)
    while now_s[0] < limit_s:
        now_s[0] += 1.0
        assert not conductor.is_over
    now_s[0] = limit_s + 0.1
    assert conductor.is_over


def test_no_line_on_the_terminal_shows_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masker = Masker()
    masker.hide(["swordfish"])
    monkeypatch.setattr(outgoing, "_filter", masker)
    lines: list[str] = []
    journal = Journal(tmp_path / FILE_NAME)
    recorder = JobRecorder(journal, Home(path=str(tmp_path)), lines.append)

    recorder.test_finished(
        TestResult(nodeid="t.py::t[swordfish]", outcome=Outcome.FAILED, message="not swordfish")
    )
    recorder.show_progress("job swordfish waits")
    recorder.output(0, ["swordfish"])
    journal.close()

    assert ["FAILED   t.py::t[***]  0.00 s", "         not ***", "job *** waits"] == lines[:3]
    assert "swordfish" not in "".join(lines)
