"""Chaos in a rank: the tool that strikes and observes, for one test."""

from __future__ import annotations

import sys
from collections.abc import Generator

import msgspec
import pytest

from disttest import observe
from disttest.extras.chaos.case import NAME, ChaosCase
from disttest.extras.chaos.chaos_tool import ChaosTool
from disttest.runtime.rank.rank_test import RankTest


def run_harmed(test: RankTest) -> Generator[None, bool, bool]:
    """Around a test that has a part in the run: from before its setup to after its teardown."""
    case = msgspec.convert(test.data[NAME], ChaosCase)
    peers = case.fault is not None and case.fault.rank != test.rank.number
    errors = _Errors()
    if peers:
        test.rank.config.pluginmanager.register(errors, "disttest-chaos-errors")
    tool = _tool(test, case)
    result = yield
    # Of the peers, one that has failed leaves, as a program does that an exception has ended: its own peers learn of it by
    # their connections, and a rank that stayed would be one more that is silent. The harmed rank does stay: its peers have to
    # cope with a program that lives on after an error of its own.
    test.leaves = peers and errors.has_failed
    if tool is not None:
        test.report(NAME, tool.report(test.item.user_properties, errors.raised))
    return result


def _tool(test: RankTest, case: ChaosCase) -> ChaosTool | None:
    """None in a rank without torch, which calls nothing in which it could be struck."""
    if "torch.distributed" not in sys.modules:
        return None
    tool = ChaosTool(case, test.rank.number, lambda at_s: test.rank.note(NAME, at_s))
    observe.install(tool)
    return tool


class _Errors:
    """A pytest plugin: how the test fails in this rank."""

    def __init__(self) -> None:
        self.has_failed = False
        self.raised: BaseException | None = None
        """The first exception, in whatever style tracebacks are shown."""

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        """Note an exception."""
        if self.raised is None and call.excinfo is not None:
            self.raised = call.excinfo.value

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self.has_failed |= report.failed
