"""``--last-failed`` names the tests that failed before, as they are named from here."""

import pytest
from sample_runs import SampleRun

from disttest.model import Outcome
from disttest.plugins.reruns.hooks import failed_below
from disttest.results.journal import FILE_NAME, Journal

FAILED = "tests/test_ddp.py::test_bad[2xgloo]"


@pytest.fixture
def results(tmp_path):
    sample = SampleRun()
    sample.test(name="test_good")
    sample.test(Outcome.FAILED, name="test_bad", message="no")
    sample.finish(1)
    folder = tmp_path / "results"
    folder.mkdir()
    journal = Journal(folder / FILE_NAME)
    for event in sample.events:
        journal.append(event)
    journal.close()
    return folder


@pytest.mark.parametrize(
    "target",
    [".", "tests", "./tests/", "tests/test_ddp.py", "tests/test_ddp.py::test_bad", FAILED],
)
def test_targets_are_narrowed_to_what_failed_beneath_them(results, target):
    warnings = []

    assert (FAILED,) == failed_below(("other.py", target), results, warnings.append)
    assert [] == warnings


@pytest.mark.parametrize("target", ["tests", "tests/test_ddp.py", FAILED])
def test_absolute_targets_are_narrowed_like_others(results, monkeypatch, target):
    monkeypatch.chdir(results.parent)

    assert (FAILED,) == failed_below(("other.py", f"{results.parent}/{target}"), results, pytest.fail)


@pytest.mark.parametrize("target", ["tests/test_dd", "test_ddp.py", "tests/test_ddp.py::test_good", "ddp"])
def test_where_nothing_failed_all_is_run_and_that_is_said(results, target):
    warnings = []

    assert () == failed_below((target,), results, warnings.append)
    assert [f"--last-failed: none of these tests failed in {results}: all of them run"] == warnings


def test_the_newest_results_here_are_meant(results, monkeypatch):
    monkeypatch.chdir(results.parent)

    assert (FAILED,) == failed_below((".",), None, pytest.fail)


def test_without_results_all_tests_run_as_in_pytest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    warnings = []

    assert () == failed_below((".",), None, warnings.append)
    assert ["--last-failed: there are no results in results: all tests run"] == warnings
