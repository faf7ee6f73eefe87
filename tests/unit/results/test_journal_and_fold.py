"""The journal survives damage; the fold turns what did not finish into a failure with its reason."""

import errno
import os
import shutil

import msgspec
import pytest

from disttest.errors import JournalError, UsageError
from disttest.model import (
    SCHEMA_VERSION,
    Cause,
    Hardware,
    Invocation,
    Outcome,
    TestCase,
    TestResult,
    WorldShape,
)
from disttest.outgoing import LONGEST_TEXT
from disttest.plugins.masking.masker import Masker
from disttest.reports.aggregates import headline
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
from disttest.results.relay import hide_what_was_learned


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


def test_the_time_of_the_tests_and_that_of_the_whole_run_are_two():
    called = msgspec.structs.replace(START, at_s=0.25)
    end = RunFinished(at_s=6.0, exit_code=0)

    run = fold([called, START, end])
    assert (5.0, 5.75) == (run.duration_s, run.whole_s)
    assert "0 tests in 5.8 s" == headline(run)
    assert fold([START, end]).whole_s is None


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


def test_lone_surrogates_are_no_reason_to_lose_an_event(tmp_path):
    journal = Journal(tmp_path / "events.jsonl")
    journal.append(START)
    journal.append(OWED[0])
    journal.append(Noted(at_s=2.0, nodeid="a", message="odd: \udcff"))
    journal.append(
        TestFinished(at_s=3.0, result=TestResult(nodeid="a", outcome=Outcome.FAILED, details="\ud800 end"))
    )

    run = fold(journal.events())

    assert (r"a: odd: \udcff",) == run.notes
    assert r"\ud800 end" == run.tests[0].final.details


def test_an_event_longer_than_a_line_may_be_is_cut_and_not_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("disttest.results.journal.LONGEST_LINE", 2 * LONGEST_TEXT)
    journal = Journal(tmp_path / "events.jsonl")
    journal.append(START)
    journal.append(OWED[0])
    details = "first" + "x" * 3 * LONGEST_TEXT + "last"
    result = TestResult(nodeid="a", outcome=Outcome.FAILED, details=details)
    journal.append(TestFinished(at_s=3.0, result=result))

    run = fold(journal.events())

    assert () == run.notes
    assert Outcome.FAILED is run.tests[0].final.outcome
    kept = run.tests[0].final.details
    assert len(kept) < LONGEST_TEXT + 100
    assert (kept.startswith("first"), kept.endswith("last")) == (True, True)


class Disk:
    """A disk with room for so many bytes; what does not fit is written in part, as the kernel does."""

    def __init__(self, monkeypatch, room):
        self.room = room
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd, data):
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(fd, data[: self.room])
        self.room -= written
        return written


def test_a_full_disk_is_told_once_and_leaves_whole_lines(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "events.jsonl")
    journal.append(START)
    journal.append(OWED[0])
    disk = Disk(monkeypatch, room=20)

    with pytest.raises(JournalError, match="cannot be written any more: No space left on device"):
        journal.append(OWED[1])
    journal.append(RunFinished(at_s=4.0, exit_code=7, reason="full"))

    assert [START, OWED[0]] == list(read_events(journal.path))
    assert [START, OWED[0], OWED[1]] == list(journal.events())[:3]
    assert 7 == fold(journal.events()).exit_code
    assert disk.room < 20


def test_a_journal_that_was_removed_is_put_back_with_all_it_had(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    supervisor, controller = Journal(folder / "events.jsonl"), Journal(folder / "events.jsonl")
    supervisor.append(START)
    controller.append(OWED[0])
    assert supervisor.is_in_place()

    shutil.rmtree(folder)
    controller.append(done("a"))
    assert not supervisor.is_in_place()
    folder.mkdir()
    supervisor.move_to(folder / "events.jsonl")
    supervisor.append(RunFinished(at_s=6.0, exit_code=0))

    run = fold(supervisor.events())
    assert (Outcome.PASSED, 0) == (run.tests[0].final.outcome, run.exit_code)
    assert supervisor.is_in_place()


def test_a_journal_is_read_by_its_writer_when_its_path_is_gone(tmp_path):
    journal = Journal(tmp_path / "events.jsonl")
    journal.append(START)
    journal.path.unlink()

    assert [START] == list(journal.events())


def test_nothing_is_written_into_a_file_that_has_the_number_of_the_journal(tmp_path):
    """A test may close all descriptors, and then open other files."""
    journal = Journal(tmp_path / "events.jsonl")
    assert journal.fileno() >= 100
    with (tmp_path / "of the test").open("wb") as other:
        os.dup2(other.fileno(), journal.fileno())

    with pytest.raises(JournalError, match="Bad file descriptor"):
        journal.append(START)
    assert b"" == (tmp_path / "of the test").read_bytes()


def test_a_test_may_replace_fstat(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "events.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", lambda _: os.stat("/"))
        journal.append(START)

    assert [START] == list(journal.events())


def test_a_journal_never_moves_into_a_file_that_is_there(tmp_path):
    journal = Journal(tmp_path / "events.jsonl")
    journal.append(START)
    other = tmp_path / "other.jsonl"
    other.write_text("of another run")

    with pytest.raises(FileExistsError):
        journal.move_to(other)

    assert "of another run" == other.read_text()
    assert [START] == list(journal.events())


def test_values_are_hidden_in_events_and_names_stay_one_name(tmp_path, monkeypatch):
    masker = Masker()
    monkeypatch.setattr("disttest.results.journal.outgoing", masker)
    masker.hide(["s3cret"])
    journal = Journal(tmp_path / "events.jsonl")
    journal.append(msgspec.structs.replace(START, argv=("--mask", "s3cret", "--mask=s3cret")))
    journal.append(TestCollected(at_s=1.0, test=case("test[s3cret]")))
    journal.append(TestCollected(at_s=1.0, test=case("test[later]")))
    masker.hide(["later"])
    journal.append(done("test[s3cret]"))
    journal.append(done("test[later]"))
    journal.append(Noted(at_s=5.0, message="later and s3cret"))

    run = fold(read_events(journal.path))

    assert ("--mask", "***", "--mask=***") == run.argv
    assert ["test[***]", "test[later]"] == [test.test.nodeid for test in run.tests]
    assert {Outcome.PASSED} == {test.final.outcome for test in run.tests}
    assert ("*** and ***",) == run.notes
    assert b"s3cret" not in journal.path.read_bytes()


def test_a_name_stays_one_name_when_the_first_value_of_a_run_is_learned(tmp_path, monkeypatch):
    masker = Masker()
    monkeypatch.setattr("disttest.results.journal.outgoing", masker)
    journal = Journal(tmp_path / "events.jsonl")
    journal.append(TestCollected(at_s=1.0, test=case("test[later]")))
    masker.hide(["later"])
    journal.append(done("test[later]"))

    (only,) = fold(read_events(journal.path)).tests

    assert Outcome.PASSED is only.final.outcome


def test_names_that_become_equal_when_values_are_learned_are_numbered(tmp_path, monkeypatch):
    masker = Masker()
    monkeypatch.setattr("disttest.results.relay.outgoing", masker)
    journal = Journal(tmp_path / "events.jsonl")
    names = {"test[first]": Outcome.FAILED, "test[second]": Outcome.PASSED, "test[other]": Outcome.PASSED}
    for name, outcome in names.items():
        journal.append(TestCollected(at_s=1.0, test=case(name)))
        journal.append(done(name, outcome))
    masker.hide(["first", "second"])

    hide_what_was_learned(tmp_path)

    tests = fold(read_events(journal.path)).tests
    assert {"test[***]": "failed", "test[***]~2": "passed", "test[other]": "passed"} == {
        test.test.nodeid: test.final.outcome for test in tests
    }
    assert ["test[***]", "test[***]~2", "test[other]"] == [test.test.name for test in tests]


def test_what_the_command_was_asked_is_kept_when_the_controller_adds_its_word():
    asked = Invocation(cwd="/here", options={"flaky": "fail"})
    run = fold(
        [
            msgspec.structs.replace(START, invocation=asked),
            msgspec.structs.replace(START, root="/there"),
            OWED[0],
            done("a", Outcome.FAILED),
            done("a", attempt=2),
        ]
    )

    assert (asked, "/there") == (run.invocation, run.root)
    assert run.flaky_fails
    assert ["a"] == [test.test.nodeid for test in run.flaky]


def test_a_run_of_several_sizes_begins_with_the_first():
    called, first, second = (
        msgspec.structs.replace(START, at_s=at_s, run_id=str(at_s)) for at_s in (1, 3, 7)
    )
    run = fold(
        [called, first, OWED[0], done("a"), RunFinished(at_s=6.0, exit_code=1), second, OWED[1], done("b")]
    )
    assert ("3", 1, 3) == (run.run_id, run.called_at_s, run.started_at_s)
    assert ["a", "b"] == [test.test.nodeid for test in run.tests]


def test_no_journal_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no journal at"):
        list(read_events(tmp_path / "none"))


def test_the_clock_of_a_run_never_goes_back():
    wall = iter([1000.0])
    ticks = iter([10.0, 11.0, 12.5])
    clock = run_clock(wall=lambda: next(wall), monotonic=lambda: next(ticks))

    assert [1001.0, 1002.5] == [clock(), clock()]


def test_a_journal_mixed_from_two_versions_is_read_and_says_so():
    newer = msgspec.structs.replace(START, schema_version=SCHEMA_VERSION + 1, disttest="9.0")
    run = fold([START, OWED[0], done("a"), newer, OWED[1], done("b"), RunFinished(at_s=9.0, exit_code=0)])

    assert ["a", "b"] == [test.test.nodeid for test in run.tests]
    assert run.notes == (
        f"a part of this journal is of version {SCHEMA_VERSION + 1}, and this disttest ({SCHEMA_VERSION}) may misread "
        "it: read it with the disttest that wrote it, 9.0",
    )
    assert () == fold([START, START]).notes


def test_fields_that_a_newer_version_has_added_do_no_harm(tmp_path):
    line = msgspec.to_builtins(START) | {"moon_phase": "full"}
    (tmp_path / "j").write_bytes(msgspec.json.encode(line) + b"\n")

    assert [START] == list(read_events(tmp_path / "j"))


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

    def test_a_flood_of_what_is_no_event_is_counted_like_in_a_journal_at_rest(self, tmp_path):
        path = tmp_path / "j"
        path.write_bytes(b"nonsense\n" * 1000)
        follower = JournalFollower(path)

        assert list(read_events(path)) == [*follower.new_events(), *follower.close()]

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
            folding.handle(event)
            assert fold(events[:count]) == folding.result()
