"""Test classes on ``disttest.testing``: the field's names, the same worlds as the pytest side."""

from __future__ import annotations

import shutil

import pytest
from lab import FAULTY_SUITES, Ended

from disttest.model import Outcome


@pytest.fixture(scope="module")
def run(module_lab) -> Ended:
    shutil.copy(FAULTY_SUITES / "own_classes.py", module_lab.folder / "test_own_classes.py")
    return module_lab.pytest("test_own_classes.py", "-q", "--disttest-timeout=8")


PASSES = [
    "Ordinary::test_passes",
    "Ordinary::test_group",
    "Ordinary::test_same_random_numbers",
    "Subtests::test_devices_and_backends",
    "Continuous::test_2_runs",
    "Continuous::test_3_warm",
    "Threads::test_sum",
    "Spawned::test_sum",
    "DynamoSingle::test_group",
    "DynamoMulti::test_compiled",
    "Rpc::test_add",
    "Rpc::test_references",
]


# What each of these tests asserts stands in tests/fixtures/faulty_suites/own_classes.py.
@pytest.mark.covers("HN-002", "HN-005", "HN-010", "HN-012", "HN-070", "HN-072", "HN-073", "HN-075", "HN-080")
@pytest.mark.covers("HN-081", "HN-082", "HN-085", "HN-089", "HN-096", "HN-115", "HN-116", "HN-117", "HN-118")
@pytest.mark.covers("HN-130", "HN-135", "HN-137", "HN-141", "HN-150", "HN-151", "HN-154")
@pytest.mark.covers("HN-170", "HN-171", "HN-172", "HN-180", "HN-181", "HN-182", "HN-183")
@pytest.mark.covers("RU-02", "RU-06", "RU-08", "RU-09", "RU-20", "RU-21", "RU-23")
@pytest.mark.parametrize("name", PASSES)
def test_passes(run, name) -> None:
    result = run.result(name)
    assert result.outcome is Outcome.PASSED, result.message + result.details


FAILS = {
    "Ordinary::test_fails": "AssertionError: only rank 0 is right",
    "Ordinary::test_exit_3": "rank 1 of 2 failed: exited with code 3",
    "Ordinary::test_os_exit_0": "rank 1 of 2 exited with code 0 in call, before it reported",
    "Ordinary::test_hangs": "timed out after 8 s",
    "RunNeverReturns::test_it": "timed out after 8 s",
    "Continuous::test_1_fails": "AssertionError: rank 1 is wrong",
    "Threads::test_fails": "rank 2 of 3 failed: AssertionError: thread 2 is wrong",
    "Threads::test_hangs": "Thread 1 terminated or timed out after 3 seconds",
    "Threads::test_exit_4": "rank 1 of 3 failed: SystemExit: 4",
    "ThreadsNotStarted::test_it": "no thread was started, so nothing was tested",
    "Spawned::test_fails": "Thread 0 exited with exception: AssertionError: in a thread",
}


@pytest.mark.covers("HN-131", "HN-132", "HN-139", "HN-140")
@pytest.mark.parametrize("name", FAILS)
def test_fails(run, name) -> None:
    result = run.result(name)
    assert result.outcome is Outcome.FAILED or result.outcome is Outcome.ERROR
    assert FAILS[name] in result.message


@pytest.mark.covers("HN-139")
def test_the_stack_of_a_thread_that_never_ends_is_reported(run) -> None:
    assert "in test_hangs" in run.result("Threads::test_hangs").details


@pytest.mark.covers("HN-120", "HN-121")
def test_every_failing_subtest_is_reported(run) -> None:
    result = run.result("Subtests::test_all_are_run")
    assert result.outcome is Outcome.FAILED
    assert "2 of the subtests failed" in result.details
    assert "a is 1, b is 3" in result.details + "".join(record.details for record in result.ranks)
    assert "a is 1, b is 4" in result.details + "".join(record.details for record in result.ranks)


@pytest.mark.covers("HN-024", "HN-038", "HN-046")
def test_a_skip_that_the_machine_decides_starts_no_world(run) -> None:
    result = run.result("Ordinary::test_skips_for_64_gpus")
    assert (result.outcome, result.message) == (Outcome.SKIPPED, "Need at least 64 CUDA devices")
    assert result.world_id == ""


def test_skips(run) -> None:
    assert run.result("Ordinary::test_skips").message == "not today"
    assert run.result("Threads::test_skips").message == "no threads today"


def test_without_a_host_the_message_says_what_to_do(module_lab, run) -> None:
    import subprocess
    import sys

    ended = subprocess.run(
        [sys.executable, "-m", "unittest", "test_own_classes.Ordinary.test_passes"],
        cwd=module_lab.folder,
        env=module_lab.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "run it with `disttest run FILE`, or with pytest and the disttest plugin" in ended.stderr
