"""The time limit of an ordinary test while the user is in a debugger, with a clock that the test sets."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from disttest.model import TestCase
from disttest.plugins.debuggers import paused_limit
from disttest.plugins.debuggers.paused_limit import pause, resume
from disttest.runtime.controller import time_limits
from disttest.runtime.controller.time_limits import TimeLimits

LIMIT_S = 1000.0
ITEM: Any = SimpleNamespace(nodeid="x", config=SimpleNamespace(pluginmanager=pytest.PytestPluginManager()))


@pytest.fixture
def limits() -> TimeLimits:
    test = TestCase(nodeid="x", slug="", classname="", name="", file="", line=1, suite="", timeout_s=LIMIT_S)
    return TimeLimits({"x": test}, asked=False)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, limits: TimeLimits) -> SimpleNamespace:
    clock = SimpleNamespace(now_s=0.0)
    for module in (time_limits, paused_limit):
        monkeypatch.setattr(module, "monotonic", lambda: clock.now_s)
    return clock


def alarm_in_s() -> float:
    return signal.getitimer(signal.ITIMER_REAL)[0]


def test_the_time_in_a_debugger_does_not_count(limits: TimeLimits, clock: SimpleNamespace) -> None:
    with limits._limited(ITEM, "setup"):
        clock.now_s = 400.0
        pause(limits)
        assert alarm_in_s() == 0.0
        clock.now_s = 5400.0
        resume()
        assert 900.0 < alarm_in_s() <= 1000.0  # the real time that was left
    assert not limits._reached
    with limits._limited(ITEM, "call"):
        assert 500.0 < alarm_in_s() <= 600.0  # by the clock


def test_a_debugger_that_is_never_left_ends_the_limit_of_its_test_only(
    limits: TimeLimits, clock: SimpleNamespace
) -> None:
    with limits._limited(ITEM, "call"):
        pause(limits)
        clock.now_s = 5400.0
    assert not limits._reached
    following: Any = limits.pytest_runtest_teardown(ITEM)
    next(following)
    assert 900.0 < alarm_in_s() <= 1000.0
    resume()
    assert 900.0 < alarm_in_s() <= 1000.0
    following.close()


def test_no_other_alarm_is_stopped(limits: TimeLimits) -> None:
    pause(limits)
    resume()
    assert alarm_in_s() == 0.0
