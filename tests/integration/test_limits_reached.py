"""A test that reached its time limit has failed, whatever its processes report afterwards.

The signal that asks for stacks (and the alarm of an ordinary test) interrupts calls of C that wait: they return, and the
test goes on to pass, to skip or to fail.
"""

from __future__ import annotations

import pytest
from lab import Lab

from disttest.model import Outcome

WAITS = """
    import ctypes
    import signal
    import pytest

    C = ctypes.CDLL(None)
"""
RANKS = (
    WAITS
    + """
    pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(1)]

    @pytest.fixture
    def slow_setup():
        C.pause()

    @pytest.fixture
    def slow_teardown():
        yield
        C.pause()

    @pytest.mark.parametrize(
        "wait",
        [
            pytest.param(signal.pause, id="python-pause"),
            pytest.param(lambda: C.pause(), id="pause"),
            pytest.param(lambda: C.sleep(600), id="sleep"),
            pytest.param(lambda: C.poll(None, 0, -1), id="poll"),
            pytest.param(lambda: C.select(0, None, None, None, None), id="select"),
        ],
    )
    def test_call(wait):
        wait()

    def test_setup(slow_setup):
        pass

    def test_teardown(slow_teardown):
        pass

    def test_one_rank(world):
        if world.rank == 1:
            C.pause()

    def test_skips_afterwards():
        C.pause()
        pytest.skip("late")

    def test_fails_afterwards():
        assert C.pause() == 0

    def test_next():
        pass
"""
)
CLASSES = (
    WAITS
    + """
    from torch.testing._internal.common_distributed import MultiProcContinuousTest, MultiProcessTestCase

    @pytest.mark.timeout(3)
    class TestProcesses(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_pauses(self):
            C.pause()

    @pytest.mark.timeout(3)
    class TestContinuous(MultiProcContinuousTest):
        world_size = 2

        @classmethod
        def backend_str(cls):
            return "gloo"

        @classmethod
        def device_type(cls):
            return "cpu"

        def test_pauses(self):
            C.pause()
"""
)
ORDINARY = (
    WAITS
    + """
    import time
    import unittest

    pytestmark = pytest.mark.timeout(0.5)

    def wait_and_catch():
        try:
            C.pause()
        except BaseException:
            pass

    @pytest.fixture
    def catching_setup():
        wait_and_catch()

    @pytest.fixture
    def catching_teardown():
        yield
        wait_and_catch()

    def test_pause():
        C.pause()

    def test_catches():
        wait_and_catch()

    def test_waits_again():
        wait_and_catch()
        wait_and_catch()

    def test_skips_afterwards():
        wait_and_catch()
        pytest.skip("late")

    def test_fails_as_expected_afterwards():
        wait_and_catch()
        pytest.xfail("late")

    @pytest.mark.xfail
    def test_marked_xfail():
        C.pause()

    def test_setup(catching_setup):
        pass

    def test_teardown(catching_teardown):
        pass

    class TestUnittest(unittest.TestCase):
        def test_skips_in_a_class(self):
            wait_and_catch()
            self.skipTest("late")

    def test_replaces_the_handler():
        signal.signal(signal.SIGALRM, lambda *_: None)
        time.sleep(1)

    def test_next():
        pass
"""
)


@pytest.fixture(scope="module")
def ranks(module_lab):
    return module_lab.write(test_ranks=RANKS, test_classes=CLASSES).run(
        "run", "test_ranks.py", "test_classes.py", "--slots", "8"
    )


@pytest.mark.parametrize(
    "name",
    [
        *(f"test_call[2xgloo-{wait}]" for wait in ("python-pause", "pause", "sleep", "poll", "select")),
        "test_setup[2xgloo]",
        "test_teardown[2xgloo]",
        "test_one_rank[2xgloo]",
        "test_skips_afterwards[2xgloo]",
        "test_fails_afterwards[2xgloo]",
        "TestProcesses::test_pauses",
        "TestContinuous::test_pauses",
    ],
)
def test_a_wait_that_the_question_for_stacks_ends_has_hung(ranks, name):
    result = ranks.result(name)

    assert Outcome.FAILED is result.outcome
    assert "(timed out after " in result.message
    assert "C.pause()" in result.ranks[1].stacks or "test_call" in result.ranks[1].stacks


def test_the_phase_of_a_hang_is_the_one_at_the_limit(ranks):
    tests = ("test_setup", "test_one_rank", "test_teardown")
    assert ["setup", "call", "teardown"] == [ranks.result(f"{test}[2xgloo]").phase for test in tests]


def test_the_next_test_runs(ranks):
    assert Outcome.PASSED is ranks.result("test_next[2xgloo]").outcome


ORDINARY_TESTS = {
    "test_pause": Outcome.FAILED,
    "test_catches": Outcome.FAILED,
    "test_waits_again": Outcome.FAILED,
    "test_skips_afterwards": Outcome.FAILED,
    "test_fails_as_expected_afterwards": Outcome.FAILED,
    "test_marked_xfail": Outcome.FAILED,
    "test_setup": Outcome.ERROR,
    "test_teardown": Outcome.ERROR,
    "test_skips_in_a_class": Outcome.FAILED,
    "test_replaces_the_handler": Outcome.FAILED,
    "test_next": Outcome.PASSED,
}


def test_an_ordinary_test_that_catches_the_failure_at_its_limit_has_failed(tmp_path, nothing_left):
    ended = Lab(tmp_path).write(test_ordinary=ORDINARY).run("run", "test_ordinary.py")

    assert ORDINARY_TESTS == {test.test.name: test.final.outcome for test in ended.run.tests}
    late = "timed out after 0.5 s in call; its outcome afterwards does not count"
    assert {late} == {
        ended.result(name).message for name in ("test_catches", "test_skips_afterwards", "test_marked_xfail")
    }
    blocked = ended.result("test_replaces_the_handler").message
    assert (
        "timed out after 0.5 s in call; SIGALRM, which ends a test there, was replaced or blocked" == blocked
    )


def test_a_contained_test_that_catches_the_failure_at_its_limit_has_failed(tmp_path, nothing_left):
    ended = Lab(tmp_path).write(test_ordinary=ORDINARY).run("run", "test_ordinary.py", "--isolate-files")

    outcomes = {test.test.name: test.final.outcome for test in ended.run.tests}
    assert dict.fromkeys(ORDINARY_TESTS, Outcome.FAILED) | {"test_next": Outcome.PASSED} == outcomes
