"""pytest's terminal where the command shows the run itself: what the command cannot tell stays, the rest goes.

Installed by ``--disttest-view``. Header, collection, warnings, durations, and what other plugins add are pytest's;
each test, its failure and the last line are the command's, which reads them from the journal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

NAME = "terminalreporter"
DEFAULT_CHARS = "fE"
"""What ``-r`` is when nobody has given it: failures and errors, which the command tells."""


class QuietReporter(TerminalReporter):  # type: ignore[misc]  # final for typing; terminal plugins subclass it
    """Tells nothing that the command tells.

    Args:
        config: of this session.
        columns: how wide the command's terminal is; ours is a pipe.
        is_told: whether the command has been told what was collected, so that it can tell.
    """

    def __init__(self, config: pytest.Config, columns: int, is_told: Callable[[], bool]) -> None:
        super().__init__(config, sys.stdout)
        self._tw.fullwidth = columns
        self._is_told = is_told

    def pytest_runtest_logstart(self, nodeid: Any, location: Any) -> None:
        """Nothing: the command shows what runs."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count it for what other plugins add, and print nothing."""
        self._tests_ran = True
        category, _, _ = self.config.hook.pytest_report_teststatus(report=report, config=self.config)
        self._add_stats(category, [report])

    def pytest_runtest_logfinish(self, nodeid: Any) -> None:
        """Nothing: the command shows what has run."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Say now what was collected: a pipe would hold it back."""
        super().pytest_collection_finish(session)
        self.flush()

    def summary_errors(self) -> None:
        """Only where the run ended before the command heard of them."""
        if not self._is_told():
            super().summary_errors()

    def summary_failures(self) -> None:
        """Nothing: the command tells them."""

    def short_test_summary(self) -> None:
        """Only where it was asked for."""
        if self.config.option.reportchars != DEFAULT_CHARS:
            super().short_test_summary()

    def summary_stats(self) -> None:
        """Only where the command has nothing to count."""
        if not self._is_told():
            super().summary_stats()


def quieten(config: pytest.Config, columns: int, is_told: Callable[[], bool]) -> None:
    """Put the quiet terminal in the place of pytest's, unless there is none or it is another plugin's own."""
    present = config.pluginmanager.getplugin(NAME)
    if type(present) is not TerminalReporter:
        return
    config.pluginmanager.unregister(present)
    config.pluginmanager.register(QuietReporter(config, columns, is_told), NAME)
