"""Chaos in a rank: install the tool that injects the fault and observes the calls of one test."""

from __future__ import annotations

import sys
from collections.abc import Generator

import msgspec
import pytest

from disttest import observe
from disttest.extras.chaos.case import NAME, ChaosCase
from disttest.extras.chaos.chaos_tool import ChaosTool
from disttest.runtime.rank.rank_test import RankTest


def observe_test(test: RankTest) -> Generator[None, bool, bool]:
    """Observe a test that takes part in the run, from before its setup to after its teardown."""
    case = msgspec.convert(test.data[NAME], ChaosCase)
    peers = case.fault is not None and case.fault.rank != test.rank.number
    errors = _Errors()
    if peers:
        test.rank.config.pluginmanager.register(errors, "disttest-chaos-errors")
    tool = _tool(test, case)
    result = yield
    # A peer that has failed ends its process, as a program does after an exception. gloo's neighbours of a dead rank
    # see their
    # connections break, and the other ranks wait for those neighbours: a failed rank that stays would be one more
    # silent
    # rank. The faulty rank does stay, since its peers have to cope with a program that lives on after its own error.
    test.leaves = peers and errors.has_failed
    if tool is not None:
        test.report(NAME, tool.report(test.item.user_properties, errors.raised))
    return result


def _tool(test: RankTest, case: ChaosCase) -> ChaosTool | None:
    """Install the tool. A rank without torch has no call to inject a fault into."""
    if "torch.distributed" not in sys.modules:
        return None
    tool = ChaosTool(case, test.rank.number, lambda at_s: test.rank.note(NAME, at_s))
    observe.install(tool)
    return tool


class _Errors:
    """A pytest plugin that notes how the test fails in this rank."""

    def __init__(self) -> None:
        self.has_failed = False
        # The exception is judged, not its traceback: --tb=native changed verdicts when those lines were read.
        self.raised: BaseException | None = None
        """The first exception."""

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        """Note the exception of a phase."""
        if self.raised is None and call.excinfo is not None:
            self.raised = call.excinfo.value

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a phase failed."""
        self.has_failed |= report.failed
