"""``disttest explain`` tells a stored failure as the run did: the finding first, the command that repeats it last."""

import contextlib
import os

import pytest
from click.testing import CliRunner
from sample_runs import ASSERTION, SampleRun, rank

from disttest.cli.main import command
from disttest.errors import UsageError
from disttest.extras.explain.message_page import id_of
from disttest.model import Outcome, RankEnd
from disttest.results.events import CollectionFailed
from disttest.results.journal import FILE_NAME, Journal
from tests.unit.results.test_explain import CASES


@pytest.fixture
def results(tmp_path):
    sample = SampleRun()
    sample.test()
    sample.test(
        Outcome.FAILED,
        name="test_bad",
        message="rank 1 of 2 failed: AssertionError: boom",
        details=ASSERTION,
        culprit=1,
        victims=(0,),
        ranks=(rank(0, None, end=RankEnd.KILLED), rank(1, Outcome.FAILED, message="AssertionError: boom")),
    )
    sample.test(
        name="test_flaky", attempts=[{"outcome": Outcome.FAILED, "message": "rank 0 of 2 failed: no"}]
    )
    sample.finish()
    return store(tmp_path, sample)


def told(*arguments, code=1):
    done = CliRunner().invoke(command, ["explain", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output.splitlines()


def store(folder, sample):
    """Write a run's journal."""
    with contextlib.closing(Journal(folder / FILE_NAME)) as journal:
        for event in sample.events:
            journal.append(event)
    return folder


def test_a_failure_begins_with_its_finding_and_ends_with_commands(results):
    lines = told(results, "test_bad")

    assert "rank 1 of 2 failed: AssertionError: boom" == lines[0]
    assert "  tests/test_ddp.py::test_bad[2xgloo]: failed at tests/test_ddp.py:19" == lines[1]
    assert any(line.startswith("rank 0: ") and "[victim]" in line for line in lines)
    assert lines[-2].startswith("repeat: disttest run 'tests/test_ddp.py::test_bad[2xgloo]'")
    assert "what to do: disttest explain rank-failed" == lines[-1]


def test_a_test_alone_is_looked_for_in_the_last_run_here(results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = (results / FILE_NAME).read_bytes()
    for name, journal, at_s in (
        ("results", whole.splitlines(keepends=True)[0], 1e9),
        ("results-2", whole, 2e9),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE_NAME).write_bytes(journal)
        os.utime(tmp_path / name / FILE_NAME, (at_s, at_s))

    assert told("results-2", "test_bad") == told("test_bad")
    assert told("results-2") == told()
    assert ["the run ended with exit code 3: the run died before it recorded its end"] == told(
        "results", code=3
    )


ENDS = {
    "green": (0, "", "nothing failed"),
    "a floor": (1, "only 1 tests ran", "the run ended with exit code 1: only 1 tests ran"),
    "no test": (5, "", "the run ended with exit code 5: there was no test"),
    "a signal": (143, "", "the run ended with exit code 143"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_run_without_a_failed_test_is_told_as_it_ended(tmp_path, end):
    code, reason, text = ENDS[end]
    sample = SampleRun()
    sample.test()
    sample.finish(code, reason)

    assert [text] == told(store(tmp_path, sample), code=code)


def test_a_file_that_was_not_collected_is_told(tmp_path):
    sample = SampleRun()
    sample.events.append(CollectionFailed(at_s=sample.now, nodeid="test_c.py", message="no such module"))
    sample.finish(2)

    lines = told(store(tmp_path, sample), code=2)
    assert "test_c.py could not be collected: no such module" == lines[0]
    assert "the run ended with exit code 2: interrupted, or a file could not be collected" == lines[-1]


def test_a_failed_run_names_its_own_reason_beside_its_failures(tmp_path):
    sample = SampleRun()
    sample.test(Outcome.FAILED, message="boom")
    sample.finish(124, "the deadline of the run passed")

    assert (
        "the run ended with exit code 124: the deadline of the run passed"
        == told(store(tmp_path, sample), code=124)[-1]
    )


@pytest.mark.parametrize("text", ["", "garbage\n", "{}\n"])
def test_garbage_is_no_journal(tmp_path, text):
    (tmp_path / FILE_NAME).write_text(text)

    done = CliRunner().invoke(command, ["explain", str(tmp_path)])
    assert isinstance(done.exception, UsageError)
    assert "is not a journal: no line is an event" in str(done.exception)


def test_without_a_name_what_failed_and_what_was_flaky_is_told(results):
    text = "\n".join(told(results))

    assert "test_bad[2xgloo]: failed" in text
    assert "test_flaky[2xgloo]: flaky\n  attempt 1: rank 0 of 2 failed: no" in text
    assert "test_sum[" not in text


FINDINGS = {
    **{name: case[1] for name, case in CASES.items()},
    "raised while others wait": "rank 1 of 2 failed: ValueError: boom",
    "killed": "rank 1 of 2 was killed by SIGSEGV in call, before it reported",
    "left": "rank 1 of 2 exited with code 3 in call, before it reported",
    "nobody could be asked": "timed out after 300 s: ranks 0, 1 of 2 still in call",
}


@pytest.mark.parametrize("message", FINDINGS.values(), ids=FINDINGS)
def test_every_finding_has_a_section_on_the_page_of_messages(message):
    assert id_of(message), message


def test_an_id_prints_its_section_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    name, quoted, *text = told("rank-killed", code=0)

    assert name == "rank-killed"
    assert quoted == "`rank K of N was killed by SIGSEGV`, `each of the N ranks was killed by SIGSEGV`"
    assert any("crash dump" in line for line in text)


def test_a_section_is_wrapped_and_its_commands_stay_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")

    text = told("gpu-toolkit-missing", code=0)

    assert any("`sudo nvidia-ctk runtime configure`" in line for line in text)
    assert all(len(line) <= 40 for line in text[3:]), text
    assert not any("**" in line or "](" in line for line in told("deadlock-proved", code=0))


def test_a_results_directory_wins_over_an_id(results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank-killed").symlink_to(results)

    assert "rank 1 of 2 failed: AssertionError: boom" in told("rank-killed")
