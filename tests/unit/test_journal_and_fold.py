"""The journal survives damage; the fold turns what did not finish into a failure with its reason."""

import msgspec
import pytest

from disttest.errors import UsageError
from disttest.model import Cause, Hardware, Outcome, TestCase, TestResult, WorldShape
from disttest.results.events import (
    CollectionFailed,
    Noted,
    RunFinished,
    RunStarted,
    TestCollected,
    TestFinished,
    TestStarted,
    WorldEnded,
    WorldStarted,
)
from disttest.results.fold import DIED_EARLY, Folding, fold
from disttest.results.journal import Journal, JournalFollower, read_events, run_clock


def case(name):
    return TestCase(nodeid=name, slug=name, classname="c", name=name, file="f.py", line=1, suite="s")


def done(name, outcome=Outcome.PASSED, attempt=1):
    return TestFinished(at_s=5.0, result=TestResult(nodeid=name, outcome=outcome, attempt=attempt))


START = RunStarted(
    at_s=1.0, run_id="r", argv=("a",), root="/", hardware=Hardware(cpus=2), slots=2, disttest="0"
)
OWED = [TestCollected(at_s=1.0, test=case(name)) for name in ("a", "b", "c")]


def test_all_that_was_owed_has_a_result():
    run = fold(
        [
            START,
            *OWED,
            done("a"),
            TestStarted(at_s=2.0, nodeid="b"),
            RunFinished(at_s=6.0, exit_code=130, reason="SIGINT came"),
        ]
    )
    results = {t.test.nodeid: t.final for t in run.tests}

    assert [Outcome.PASSED, Outcome.ERROR, Outcome.ERROR] == [results[name].outcome for name in "abc"]
    assert "did not finish: it was running when SIGINT came" == results["b"].message
    assert "did not finish: it had not started when SIGINT came" == results["c"].message
    assert results["b"].cause is Cause.INFRASTRUCTURE
    assert 130 == run.exit_code


def test_a_journal_without_an_end_is_of_a_run_that_died():
    run = fold([START, *OWED, done("a"), done("b"), done("c")])

    assert (3, DIED_EARLY) == (run.exit_code, run.reason)


def test_attempts_make_a_test_flaky_and_the_last_one_counts():
    run = fold([START, OWED[0], done("a", Outcome.FAILED), done("a", attempt=2)])

    assert run.tests[0].flaky
    assert Outcome.PASSED is run.tests[0].final.outcome
    assert 2 == len(run.tests[0].attempts)


def test_a_later_word_on_the_same_attempt_replaces_the_first():
    run = fold([START, OWED[0], done("a"), done("a", Outcome.ERROR)])

    assert [Outcome.ERROR] == [attempt.outcome for attempt in run.tests[0].attempts]


def test_worlds_collection_errors_and_notes():
    shape = WorldShape(size=2, backend="gloo")
    run = fold(
        [
            START,
            WorldStarted(at_s=2.0, world_id="w1", shape=shape, slots=("cpu:0",), pid=1),
            WorldEnded(at_s=4.0, world_id="w1", reason="done"),
            WorldEnded(at_s=4.0, world_id="unknown"),
            CollectionFailed(at_s=4.0, nodeid="f.py", message="ImportError"),
            Noted(at_s=4.0, nodeid="a", message="leak"),
        ]
    )

    assert (2.0, 4.0, "done") == (run.worlds[0].started_at_s, run.worlds[0].ended_at_s, run.worlds[0].reason)
    assert "f.py" == run.collection_errors[0].nodeid
    assert ("a: leak",) == run.notes
    assert 3.0 == run.duration_s


def test_a_headless_journal_still_folds():
    run = fold([OWED[0], done("a")])

    assert Outcome.PASSED is run.tests[0].final.outcome


def test_results_survive_json():
    run = fold([START, *OWED, done("a")])

    assert run == msgspec.json.decode(msgspec.json.encode(run), type=type(run))


def test_damage_is_noted_and_skipped(tmp_path):
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    journal.append(START)
    journal.append(OWED[0])
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event":"from_the_future","at_s":1}\n\x00\xff binary\n\n{"event":"test_coll')

    run = fold(read_events(path))

    assert ["a"] == [test.test.nodeid for test in run.tests]
    assert ["events.jsonl:3", "events.jsonl:4", "events.jsonl:6"] == [
        note.split(": ")[0] for note in run.notes
    ]


def test_no_journal_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no journal at"):
        list(read_events(tmp_path / "none"))


def test_the_clock_of_a_run_never_goes_back():
    wall = iter([1000.0])
    ticks = iter([10.0, 11.0, 12.5])
    clock = run_clock(wall=lambda: next(wall), monotonic=lambda: next(ticks))

    assert [1001.0, 1002.5] == [clock(), clock()]


class TestFollowing:
    def test_events_are_seen_as_they_are_written(self, tmp_path):
        journal = Journal(tmp_path / "j")
        follower = JournalFollower(tmp_path / "j")
        assert [] == list(follower.new_events())
        journal.append(START)
        assert [START] == list(follower.new_events())
        for event in OWED:
            journal.append(event)

        assert OWED == list(follower.new_events())
        assert [] == list(follower.close())

    def test_half_a_line_waits_for_its_other_half(self, tmp_path):
        path = tmp_path / "j"
        line = msgspec.json.encode(START) + b"\n"
        path.write_bytes(line[:20])
        follower = JournalFollower(path)
        assert [] == list(follower.new_events())
        assert follower.cut_short
        with path.open("ab") as file:
            file.write(line[20:])

        assert [START] == list(follower.new_events())
        assert not follower.cut_short

    def test_a_line_that_never_gets_an_end_is_a_note_with_its_number(self, tmp_path):
        path = tmp_path / "j"
        path.write_bytes(msgspec.json.encode(START) + b"\n" + b'{"event":"test_fin')
        follower = JournalFollower(path)
        first, last = [*follower.new_events(), *follower.close()]

        assert START == first
        assert isinstance(last, Noted)
        assert "j:2: skipped, not an event" in last.message

    def test_what_follows_a_cut_line_is_not_swallowed(self, tmp_path):
        path = tmp_path / "j"
        path.write_bytes(b'{"event":"test_fin')
        journal = Journal(path)
        journal.end_line()
        journal.append(RunFinished(at_s=2.0, exit_code=3, reason="died"))

        assert [Noted, RunFinished] == [type(event) for event in read_events(path)]

    def test_folding_while_it_lasts_comes_to_the_same(self):
        events = [START, *OWED, done("a"), TestStarted(at_s=2.0, nodeid="b")]
        folding = Folding()
        for count, event in enumerate(events, 1):
            folding.take(event)
            assert fold(events[:count]) == folding.result()
