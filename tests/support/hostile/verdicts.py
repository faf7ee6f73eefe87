"""Tests and modules that would have the run believe something else than what happened."""

from __future__ import annotations

from lab import Ended, Lab

from disttest.model import Cause, Outcome
from hostile import Trial

GOOD = """
    import pytest

    @pytest.mark.world_size(2)
    def test_good(world):
        pass
"""
LEAVES_IN_A_TEST = """
    import os

    def test_leaves():
        os._exit({code})
"""
LEAVES_AT_THE_END = """
    import atexit, os
    atexit.register(os._exit, {code})
"""
KILLS_ITS_GROUP = """
    import os, pytest, signal, time

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("who", [0, 1])
    def test_kills(world, who):
        if world.rank == who:
            os.killpg(0, signal.SIGKILL)
        time.sleep(600)
"""
NO_CALL = """
    import pytest

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(item, nextitem):
        return True
"""
ODD = """
    import sys, pytest

    class Rude:
        def __repr__(self):
            raise ValueError

    @pytest.mark.world_size(2)
    def test_property(world, record_property):
        record_property("key", {("a", 1): Rude()})

    @pytest.mark.world_size(2)
    def test_stream(world):
        sys.stdout = None

    @pytest.mark.world_size(2)
    def test_after(world):
        print("fine")
"""

OTHER_TESTS = """
    import os, pytest, threading

    threading.Thread(target=threading.Event().wait, daemon=True).start()

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("value", [os.getpid()], ids=["pid"])
    def test_pid(world, value):
        pass
"""

_MEANINGFUL = (4, 5, 7, 124)
"""Codes with which the command itself ends."""


def _said(ended: Ended, code: int, *words: str) -> None:
    """The run ended with this code and said these words, and the reports are there."""
    assert code == ended.exit_code, f"exit code {ended.exit_code}\n{ended.output}"
    for text in words:
        assert text in ended.output, f"not said: {text}\n{ended.output}"
    for name in ("junit.xml", "summary.md", "report.html", "results.json"):
        assert (ended.results / name).stat().st_size > 0, name


def _leaves_at_import(lab: Lab) -> None:
    leaving = {f"test_leaves_{code}": f"import os; os._exit({code})" for code in _MEANINGFUL}

    ended = lab.write(test_good=GOOD, **leaving).run(".")

    told = "test_leaves_{0}.py called os._exit({0}) while it was imported; nothing of it was run"
    _said(ended, 2, *(told.format(code) for code in _MEANINGFUL))
    assert ended.result("test_good").outcome is Outcome.PASSED


def _leaves_beneath_python(lab: Lab) -> None:
    ended = lab.write(test_good=GOOD, test_leaves="import ctypes; ctypes.CDLL(None)._exit(4)").run(".")

    _said(ended, 3, "ended with exit code 4 in the middle of the run, while importing test_leaves.py")


def _leaves_in_a_conftest(lab: Lab) -> None:
    ended = lab.write(test_good=GOOD, conftest="import os; os._exit(4)").run(".")

    _said(ended, 3, "ended with exit code 4 in the middle of the run, while starting: a plugin or a conftest")


def _leaves_in_an_ordinary_test(lab: Lab) -> None:
    ended = lab.write(test_leaves=LEAVES_IN_A_TEST.format(code=5)).run(".")

    _said(ended, 1, "test_leaves.py::test_leaves ended the pytest process with exit code 5")
    result = ended.result("test_leaves")
    assert (Outcome.ERROR, Cause.TEST) == (result.outcome, result.cause)


def _leaves_at_the_end(lab: Lab) -> None:
    """The tests had all passed: neither green, since something ended the process, nor "nothing was collected"."""
    ended = lab.write(test_good=GOOD, conftest=LEAVES_AT_THE_END.format(code=5)).run(".")

    _said(ended, 3, "the pytest process ended with exit code 5 when all was done")
    assert Outcome.PASSED is ended.result("test_good").outcome


def _kills_its_group(lab: Lab) -> None:
    ended = lab.write(test_kills=KILLS_ITS_GROUP, test_good=GOOD).run(".")

    _said(ended, 1)
    for who in (0, 1):
        result = ended.result(f"test_kills[2xgloo-{who}]")
        said = f"rank {who} of 2 was killed by SIGKILL in call, before it reported"
        assert (said, who, Cause.TEST) == (result.message, result.culprit, result.cause)
    assert Outcome.PASSED is ended.result("test_good").outcome


def _no_call(lab: Lab) -> None:
    ended = lab.write(test_good=GOOD, conftest=NO_CALL).run(".")

    _said(ended, 5, "no test ran: no rank has reported the call")
    assert Outcome.NOT_RUN is ended.result("test_good").outcome


def _odd_objects(lab: Lab) -> None:
    ended = lab.write(test_odd=ODD).run(".")

    _said(ended, 0)
    assert [Outcome.PASSED] * 3 == [test.final.outcome for test in ended.run.tests]


def _other_tests(lab: Lab) -> None:
    ended = lab.write(test_pid=OTHER_TESTS).run(".")

    _said(ended, 1, "it did not collect the same test as rank 0: it has value=")
    assert (Outcome.ERROR, 1) == (ended.result("test_pid").outcome, ended.result("test_pid").culprit)


TRIALS = (
    Trial(
        id="exit-at-import",
        claim="os._exit() in a test module is a collection error of that module, whatever the code; the other modules run.",
        run=_leaves_at_import,
    ),
    Trial(
        id="exit-4-beneath-python-at-import",
        claim="A test module that ends the process from C is named, and its code is not taken for pytest's word.",
        run=_leaves_beneath_python,
    ),
    Trial(
        id="exit-4-in-a-conftest",
        claim="os._exit(4) in a conftest is no usage error.",
        run=_leaves_in_a_conftest,
    ),
    Trial(
        id="exit-5-in-an-ordinary-test",
        claim="os._exit(5) in an ordinary test names the test, and does not mean that nothing was collected.",
        run=_leaves_in_an_ordinary_test,
    ),
    Trial(
        id="exit-5-at-the-end",
        claim="A code that a conftest chooses at the end of the process does not stand for the run.",
        run=_leaves_at_the_end,
    ),
    Trial(
        id="killpg",
        claim="A test that kills its process group kills its rank, and neither its world nor its peers.",
        run=_kills_its_group,
    ),
    Trial(
        id="protocol-without-a-call",
        claim="A conftest that runs the protocol of all tests and reports nothing makes no green run.",
        run=_no_call,
    ),
    Trial(
        id="odd-objects",
        claim="Properties without a representation and streams that are none do not change a verdict.",
        run=_odd_objects,
    ),
    Trial(
        id="other-tests-under-one-id",
        claim="Ranks that are fresh interpreters and have other parameters under one id do not pass as one test.",
        run=_other_tests,
    ),
)
