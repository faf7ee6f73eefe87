"""Who is told that a rank of a hosted test is debugged, and when its debugger opens."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import NoReturn, cast

import pytest

from disttest.model import TestCase
from disttest.plugins.launching_classes.account import Account
from disttest.plugins.launching_classes.team import HostedAttempt
from disttest.runtime.messages.phases import PhaseBoard, PhaseCell
from disttest.runtime.messages.protocol import Channel


def test_the_main_process_says_that_one_of_its_ranks_is_held() -> None:
    board = PhaseBoard(1)
    test = TestCase(nodeid="t", slug="", classname="", name="", file="", line=1, suite="", timeout_s=10.0)
    attempt = HostedAttempt(test=test, number=1, started_s=100.0, started_at_s=0.0, ranks=[])
    attempt.hold(100.5, on=True)  # nobody is to be told
    attempt.main = PhaseCell(board.path, 0)

    said = []
    for now_s, on in ((101.0, True), (900.0, True), (901.0, False)):
        attempt.hold(now_s, on=on)
        said.append(board.is_held(0))

    assert said == [True, True, False]
    assert 800.5 == attempt.paused_s


class Line:
    """A channel that notes whether anything was said."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def send(self, message: object) -> None:
        self.said.append(message)


def test_a_failure_is_told_by_who_shows_it() -> None:
    line = Line()
    seen: list[object] = []

    def show(error: BaseException, report: Callable[[], None]) -> None:
        seen.extend([error, len(line.said)])
        report()
        seen.append(len(line.said))

    account = Account(cast("Channel", line), show)
    error = ValueError("boom")
    account.note(error)
    account.report_text("Traceback ...")
    account.report_end(10, {})

    assert seen == [error, 0, 1]


@pytest.mark.parametrize("error", [unittest.SkipTest("not here"), SystemExit(3)])
def test_what_is_no_failure_is_not_shown(error: BaseException) -> None:
    def show(*_: object) -> NoReturn:
        raise AssertionError(error)

    account = Account(cast("Channel", Line()), show)
    account.note(error)
    account.report_end(3, {3: "a skip"})
