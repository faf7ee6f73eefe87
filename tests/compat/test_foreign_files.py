"""What files of torch's own suite, and of others, do that ours never did: each case by a stand-in of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from disttest.model import Outcome
from tests.compat.stand_ins import COPIED, FILES


@pytest.fixture(scope="module")
def run(module_lab):
    return module_lab.write(**FILES).run(".", "--timeout", "60")


def test_a_rank_sees_no_handler_of_pytest(run):
    assert run.result("test_the_logger_has_what_its_library_gave_it").outcome is Outcome.PASSED, run.output


VACUOUS = "torch passes 1 of the skipped tests vacuously here: the reports list them"


def test_a_number_of_ranks_that_counts_no_device_is_a_skip_and_told_in_every_report(run):
    result = run.result("test_never_runs")

    assert (Outcome.SKIPPED, Outcome.PASSED) == (result.outcome, result.torch_outcome)
    assert result.message.startswith("needs an accelerator")
    assert ["test_never_runs"] == [test.test.name for test in run.run.vacuous]
    assert VACUOUS in run.run.notes
    for name in ("summary.md", "report.html"):
        assert "Tests that torch passes vacuously here" in (run.results / name).read_text(), name
    assert "passes vacuously here" in run.output


def test_torchs_rules_pass_it(module_lab, run):
    ended = module_lab.pytest(
        "test_devices.py", "--disttest-host", "--disttest-verdict=torch", results="lenient"
    )

    assert (0, Outcome.PASSED) == (ended.exit_code, ended.result("test_never_runs").outcome), ended.output


def test_a_file_that_leaves_at_import_is_its_own_and_the_others_run(run):
    errors = {error.nodeid: error.message for error in run.run.collection_errors}

    assert 2 == run.exit_code
    assert {"test_leaves_with_3.py", "test_leaves_at_once.py"} == errors.keys()
    assert "test_leaves_with_3.py called sys.exit(3) while it was imported" in errors["test_leaves_with_3.py"]
    assert "before" in errors["test_leaves_with_3.py"]
    assert "test_leaves_at_once.py called os._exit(4)" in errors["test_leaves_at_once.py"]
    skipped = {
        test.test.nodeid: test.final.message for test in run.run.tests if test.final.phase == "collect"
    }
    reason = "exited with code 0 while it was imported: no such library, nothing to test"
    assert {"test_leaves.py": reason} == skipped
    assert "2" == run.junit().get("errors")


def test_newer_bases_run_their_ranks_and_tell_what_is_wrong(run):
    outcomes = {
        test.test.nodeid.partition("::")[2]: test.final.outcome
        for test in run.run.tests
        if "test_bases" in test.test.nodeid
    }
    good = {name for name, outcome in outcomes.items() if outcome is Outcome.PASSED}

    assert 11 == len(outcomes)
    assert {name for name in outcomes if not name.endswith("_wrong")} == good, run.output


def test_who_does_not_ask_gets_what_pytest_makes_of_it(lab):
    lab.write(test_leaves=FILES["test_leaves"])
    seen = [
        subprocess.run(
            [sys.executable, "-m", "pytest", *words, "test_leaves.py"],
            cwd=lab.folder,
            env=lab.environ,
            capture_output=True,
            check=False,
        ).returncode
        for words in ((), ("-p", "no:disttest"))
    ]

    assert seen[0] == seen[1] == 3


def flakefinder() -> str:
    """A folder with the real plugin: in the environment of the tests it would repeat every other test."""
    folder = Path.home() / ".cache" / "disttest" / "plugins-flakefinder-1.1.0"
    if not folder.exists():
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(fresh)]
        subprocess.run([*pip, "pytest-flakefinder==1.1.0"], check=True, capture_output=True, timeout=120)
        fresh.rename(folder)
    return str(folder)


def test_each_copy_of_a_test_runs_under_an_id_of_its_own(lab):
    trace = lab.folder / "trace"
    path = os.pathsep.join([lab.environ["PYTHONPATH"], flakefinder()])
    options = ("--", "--flake-finder", "--flake-runs=4")
    ended = lab.write(test_copied=COPIED).run("test_copied.py", *options, PYTHONPATH=path, TRACE=str(trace))
    ids = [test.test.nodeid.partition("::")[2] for test in ended.run.tests]

    assert 0 == ended.exit_code, ended.output
    assert ["TestRanks::test_counts", *(f"TestRanks::test_counts#{number}" for number in (2, 3, 4))] == ids
    assert 4 == len(trace.read_text().split())
    results = json.loads((ended.results / "results.json").read_text())
    assert 4 == len(results["tests"])
