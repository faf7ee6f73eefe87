"""An ordinary test that ends the pytest process: the failure is its own."""

from __future__ import annotations

import pytest

from disttest.model import Cause, Outcome

SOURCE = """
    import os
    import pytest
    import signal

    @pytest.fixture
    def crashing_teardown():
        yield
        signal.raise_signal(signal.SIGSEGV)

    def test_before():
        pass

    def test_crashes({fixture}):
        {crash}

    def test_after():
        pass

    @pytest.mark.world_size(1)
    def test_in_a_world():
        pass
"""
CRASHES = {
    "SIGSEGV": "signal.raise_signal(signal.SIGSEGV)",
    "SIGABRT": "os.abort()",
    "SIGKILL": "signal.raise_signal(signal.SIGKILL)",
    "exit code 0": "os._exit(0)",
    "exit code 4": "os._exit(4)",
}


@pytest.mark.parametrize("how", CRASHES)
def test_a_test_that_ends_the_pytest_process_has_failed(lab, how):
    ended = lab.write(test_it=SOURCE.format(crash=CRASHES[how], fixture="")).run("run", "test_it.py")

    check(ended, how)


def test_a_crash_of_the_tear_down_is_that_tests_failure(lab):
    ended = lab.write(test_it=SOURCE.format(crash="pass", fixture="crashing_teardown")).run(
        "run", "test_it.py"
    )

    check(ended, "SIGSEGV")


def check(ended, how):
    assert 1 == ended.exit_code, ended.output
    outcomes = {test.test.name: test.final.outcome for test in ended.run.tests}
    assert {
        "test_before": Outcome.PASSED,
        "test_crashes": Outcome.ERROR,
        "test_after": Outcome.NOT_RUN,
        "test_in_a_world[1xgloo]": Outcome.PASSED,
    } == outcomes
    result = ended.result("test_crashes")
    assert Cause.TEST is result.cause
    told = "--isolate-files runs ordinary tests in processes of their own, so that the others run"
    assert f"the test ended the pytest process with {how}; {told}" == result.message
    why = f"test_it.py::test_crashes ended the pytest process with {how}"
    assert (f"not run: {why}", why) == (ended.result("test_after").message, ended.run.reason)
    assert () == ended.run.collection_errors
    assert 1 == len(list(ended.junit().iter("error")))
    assert 1 == ended.output.count("✗ test_it.py::test_crashes")
