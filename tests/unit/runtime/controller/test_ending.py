"""The end of a run without a command: one reading of the journal for the exit code and the reports."""

import json
from collections import Counter

import pytest

from disttest.errors import ExitCode, InfrastructureError
from disttest.model import Cause, Hardware, Outcome, TestCase, TestResult
from disttest.results import journal as journals
from disttest.results.directory import claim
from disttest.results.journal import FILE_NAME, Journal
from disttest.runtime.controller.ending import end_run
from disttest.runtime.controller.run_recorder import RunRecorder
from disttest.runtime.controller.run_watch import RunWatch

NODEIDS = ("t.py::test_a", "t.py::test_b")


class Sweep(RunWatch):
    """Finds something of the run's."""

    def clean(self, attempts):
        yield NODEIDS[0], f"left by one of {len(attempts())} tests"


def run_in(directory):
    recorder = RunRecorder(Journal(directory.path / FILE_NAME))
    recorder.run_started(run_id="r", argv=(), root=str(directory.path), hardware=Hardware(cpus=1), slots=1)
    for nodeid, outcome in zip(NODEIDS, (Outcome.PASSED, Outcome.FAILED), strict=True):
        test = TestCase(
            nodeid=nodeid, slug="t", classname="t", name=nodeid[-6:], file="t.py", line=1, suite="t"
        )
        recorder.collected(test)
        cause = Cause.TEST if outcome.is_bad else None
        recorder.test_finished(TestResult(nodeid=nodeid, outcome=outcome, cause=cause))
    return recorder


def test_each_event_is_read_once_for_the_code_and_the_reports(tmp_path, monkeypatch):
    read = Counter()
    decoded = journals._decoded
    monkeypatch.setattr(journals, "_decoded", lambda line: read.update([bytes(line)]) or decoded(line))
    directory = claim(tmp_path / "results")
    recorder = run_in(directory)

    code = end_run(recorder, directory, {"sweep": Sweep()}, exit_code=0, reason="", listed=False)

    assert code == 1
    written = (tmp_path / "results" / FILE_NAME).read_bytes().splitlines()
    assert set(written) == set(read) and set(read.values()) == {1}
    shown = json.loads((tmp_path / "results" / "results.json").read_text())
    assert shown["exit_code"] == 1
    assert shown["notes"] == [f"{NODEIDS[0]}: left by one of 2 tests"]


class Broken(RunWatch):
    """Of a plugin that fails, in words that only an error of a machine may have."""

    def clean(self, attempts):
        raise InfrastructureError("the machine is gone")


@pytest.mark.parametrize(
    ("bad", "ended", "code", "reason"),
    [
        (Cause.TEST, "", ExitCode.FAILED, ""),
        (Cause.INFRASTRUCTURE, "", ExitCode.INTERNAL, "plugin first failed in disttest_watch_run"),
        (None, "", ExitCode.INTERNAL, "plugin first failed in disttest_watch_run"),
        (
            None,
            "the deadline of the run (5 s) passed",
            ExitCode.DEADLINE,
            "the deadline of the run (5 s) passed",
        ),
    ],
)
def test_a_failing_watch_is_noted_and_the_others_clean_up(tmp_path, bad, ended, code, reason):
    directory = claim(tmp_path / "results")
    recorder = run_in(directory)
    if bad is not Cause.TEST:
        outcome = Outcome.ERROR if bad else Outcome.PASSED
        recorder.test_finished(TestResult(nodeid=NODEIDS[1], outcome=outcome, cause=bad))
    watches = {"first": Broken(), "sweep": Sweep()}

    ending = end_run(
        recorder,
        directory,
        watches,
        exit_code=ExitCode.DEADLINE if ended else int(bad is not None),
        reason=ended,
        listed=False,
    )

    assert ending == code
    shown = json.loads((tmp_path / "results" / "results.json").read_text())
    left, failed = shown["notes"]
    assert left == f"{NODEIDS[0]}: left by one of 2 tests"
    assert failed == "plugin first failed in disttest_watch_run: InfrastructureError: the machine is gone"
    assert shown["reason"].startswith(reason)
    assert bool(shown["reason"]) == bool(reason)


def test_a_test_that_fails_again_after_it_passed_is_not_flaky(tmp_path):
    recorder = run_in(claim(tmp_path / "results"))

    recorder.test_finished(TestResult(nodeid=NODEIDS[1], outcome=Outcome.PASSED, attempt=2))
    assert [*recorder.flaky] == [NODEIDS[1]]

    failed = TestResult(nodeid=NODEIDS[1], outcome=Outcome.FAILED, cause=Cause.TEST, attempt=3)
    recorder.test_finished(failed)
    assert [*recorder.flaky] == []


def test_a_failed_test_has_the_id_of_its_message_and_a_passed_one_none(tmp_path):
    journal = Journal(tmp_path / FILE_NAME)
    recorder = RunRecorder(journal)
    for outcome, message in (
        (Outcome.FAILED, "rank 1 of 2 was killed by SIGSEGV in call, before it reported"),
        (Outcome.FAILED, "nothing that is known"),
        (Outcome.PASSED, "rank 1 of 2 was killed by SIGSEGV"),
    ):
        recorder.test_finished(TestResult(nodeid="t.py::t", outcome=outcome, message=message))

    ids = [
        json.loads(line)["result"].get("message_id", "") for line in journal.path.read_bytes().splitlines()
    ]
    assert ["rank-killed", "", ""] == ids
