"""faulthandler's timer: counted, stopped and named between tests; never touched where no test has started it."""

from __future__ import annotations

import faulthandler
import os

import pytest

from disttest.runtime.rank import watchdog


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The timer's two functions are counted until the test ends; the calls for a new process."""
    after_fork: list[object] = []
    for name in ("dump_traceback_later", "cancel_dump_traceback_later"):
        monkeypatch.setattr(faulthandler, name, getattr(faulthandler, name))
    monkeypatch.setattr(os, "register_at_fork", lambda *, after_in_child: after_fork.append(after_in_child))
    monkeypatch.setattr(watchdog, "_is_running", False)
    watchdog.count_starts()
    return after_fork


def test_a_timer_that_is_left_is_stopped_and_named_once(counted):
    faulthandler.dump_traceback_later(1000)

    assert (watchdog.LEFT,) == watchdog.stop_leftover()
    assert () == watchdog.stop_leftover()


def test_a_timer_that_was_stopped_is_not_named(counted):
    faulthandler.dump_traceback_later(1000)
    faulthandler.cancel_dump_traceback_later()

    assert () == watchdog.stop_leftover()


def test_a_start_that_fails_starts_nothing(counted):
    with pytest.raises(ValueError):
        faulthandler.dump_traceback_later(-1)

    assert () == watchdog.stop_leftover()


def test_a_new_process_does_not_stop_the_timer_of_its_parent(counted):
    faulthandler.dump_traceback_later(1000)
    (forget,) = counted
    forget()

    assert () == watchdog.stop_leftover()
    faulthandler.cancel_dump_traceback_later()
