"""Tests in a process whose clocks stand still: their limits, and the deadline of the run, arrive all the same."""

from __future__ import annotations

from disttest.model import Outcome

# What freezegun does: it replaces the functions of time, also where modules have imported them by name.
CONFTEST = """
    import os
    import signal
    import sys
    import time

    NAMES = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns")
    REAL = {id(getattr(time, name)): (lambda now: lambda: now)(getattr(time, name)()) for name in NAMES}
    REAL[id(time.sleep)] = lambda seconds: None
    OTHERS = ("threading", "multiprocessing", "queue", "_pytest")  # freezegun leaves them alone
    for module in [module for name, module in sys.modules.items() if not name.startswith(OTHERS)]:
        for name, value in list(vars(module).items()):
            if id(value) in REAL:
                setattr(module, name, REAL[id(value)])
"""
LIMITS = """
    import signal
    import threading
    import time
    import pytest

    def wait():
        threading.Event().wait()

    def test_clocks_stand_still():
        assert time.monotonic() == time.monotonic()

    @pytest.mark.world_size(2)
    def test_clocks_of_ranks_stand_still():
        assert time.monotonic() == time.monotonic()

    @pytest.mark.timeout(1)
    @pytest.mark.world_size(2)
    def test_ranks_hang():
        wait()

    @pytest.mark.world_size(2)
    def test_one_rank_fails(world):
        assert world.rank == 1
        wait()

    @pytest.mark.timeout(1)
    def test_ordinary_test_hangs():
        wait()

    @pytest.mark.timeout(1)
    def test_signals_are_replaced(monkeypatch):
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setattr(signal, "setitimer", lambda *_: None)

    @pytest.mark.timeout(1)
    def test_ordinary_test_hangs_after_that():
        wait()
"""
DEADLINE = """
    import threading
    import pytest

    @pytest.mark.world_size(2)
    def test_hangs():
        threading.Event().wait()
"""
OUTCOMES = {
    "test_clocks_stand_still": Outcome.PASSED,
    "test_clocks_of_ranks_stand_still[2xgloo]": Outcome.PASSED,
    "test_ranks_hang[2xgloo]": Outcome.FAILED,
    "test_one_rank_fails[2xgloo]": Outcome.FAILED,
    "test_ordinary_test_hangs": Outcome.FAILED,
    "test_signals_are_replaced": Outcome.PASSED,
    "test_ordinary_test_hangs_after_that": Outcome.FAILED,
}


def test_limits_arrive(lab):
    ended = lab.write(conftest=CONFTEST, test_limits=LIMITS).run("run", "test_limits.py", limit_s=60)

    assert OUTCOMES == {test.test.name: test.final.outcome for test in ended.run.tests}, ended.output
    for name in (
        "test_ranks_hang[2xgloo]",
        "test_ordinary_test_hangs",
        "test_ordinary_test_hangs_after_that",
    ):
        assert "timed out after 1 s" in ended.result(name).message


def test_limits_of_contained_tests_arrive(lab):
    ended = lab.write(conftest=CONFTEST, test_limits=LIMITS).run(
        "run", "test_limits.py", "--isolate-files", limit_s=60
    )

    assert OUTCOMES == {test.test.name: test.final.outcome for test in ended.run.tests}, ended.output


def test_the_deadline_of_the_run_arrives(lab):
    ended = lab.write(conftest=CONFTEST, test_hangs=DEADLINE).run(
        "run", "test_hangs.py", "--deadline", "15", limit_s=60
    )

    assert 124 == ended.exit_code, ended.output
    # The controller has ended the run: the command, whose clock goes, would have done so five seconds later.
    assert "the deadline of the run (15 s) passed" in ended.output
