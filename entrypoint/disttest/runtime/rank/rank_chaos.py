"""Chaos in this rank: the tool that strikes and looks, for the running test."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import msgspec
import pytest

from disttest import observe
from disttest.chaos.chaos_tool import ChaosTool
from disttest.runtime.messages.protocol import Channel, FaultStruck, RunTest

NAME = "chaos"
"""Of its part among what was seen in a test."""
_encoder = msgspec.json.Encoder()


class Chaos:
    """From before the set-up of a test to after its tear-down.

    Args:
        order: the test.
        rank: of this process.
        channel: to its world.
        config: pytest's, for what the test comes to here.
    """

    def __init__(self, order: RunTest, rank: int, channel: Channel, config: pytest.Config) -> None:
        self._nodeid = order.nodeid
        fault = order.chaos.fault if order.chaos else None
        self._may_leave = fault is not None and fault.rank != rank
        self._has_failed = False
        self._raised: BaseException | None = None
        if self._may_leave:
            config.pluginmanager.register(self, "disttest-chaos")
        self._tool: ChaosTool | None = None
        # A rank without torch calls nothing in which it could be struck.
        if order.chaos is not None and "torch.distributed" in sys.modules:
            self._tool = ChaosTool(order.chaos, rank, lambda at_s: channel.send(FaultStruck(at_s=at_s)))
            observe.install(self._tool)

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        """Note what it raises first, in whatever style tracebacks are shown."""
        if self._raised is None and call.excinfo is not None:
            self._raised = call.excinfo.value

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self._has_failed |= report.failed

    @property
    def leaves(self) -> bool:
        """Whether this process ends after the test, as a program does that an exception has ended.

        Its own peers learn of it by their connections; a rank that stayed would be one more that is silent. The harmed rank
        does stay: a program that lives on after an error of its own is what its peers are to cope with.
        """
        return self._may_leave and self._has_failed

    def seen(self, items: Mapping[str, pytest.Item]) -> dict[str, msgspec.Raw]:
        """What came of it, for the world."""
        if self._tool is None:
            return {}
        report = self._tool.report(items[self._nodeid].user_properties, self._raised)
        return {NAME: msgspec.Raw(_encoder.encode(report))}
