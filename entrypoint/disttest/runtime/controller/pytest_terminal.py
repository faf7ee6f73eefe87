"""pytest's terminal output: lines that explain its counts, and a quiet reporter while the command shows the run.

The quiet reporter prints only output that the command cannot show. It is installed if the command has a view. Header,
collection, warnings, durations and additions of other plugins are pytest's. Tests, failures and the last line are the
command's, which reads them from the journal. Silencing a subclass, as terminal plugins do, keeps the reporter's
counts for those plugins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

from disttest.results.verdict import NOT_RUN
from disttest.runtime.controller.run_recorder import RunRecorder


def write_end(reporter: TerminalReporter, recorder: RunRecorder, *, without_worlds: str) -> None:
    """List flaky tests, failed tests that torch's harness would have passed, and tests that it passes vacuously.

    Args:
        reporter: pytest's terminal reporter.
        recorder: recorder of the run.
        without_worlds: message for a green run that used no world; empty for any other run.
    """
    if recorder.nothing_ran:
        reporter.line(f"disttest: {NOT_RUN}", yellow=True)
    if without_worlds:
        reporter.line(f"disttest: {without_worlds}", yellow=True)
    flaky = recorder.flaky
    if flaky:
        reporter.section("flaky tests")
        for line in flaky.values():
            reporter.line(line)
    green = recorder.false_greens
    if green:
        reporter.section("false greens avoided")
        reporter.line(f"torch's own rules would have passed {len(green)} of the failed tests:")
        for nodeid in green:
            reporter.line(f"  {nodeid}")
    if recorder.vacuous:
        reporter.section("tests that torch passes vacuously here")
        reporter.line("they are skipped: no rank of them would run on this machine")
        for nodeid in recorder.vacuous:
            reporter.line(f"  {nodeid}")


NAME = "terminalreporter"
DEFAULT_CHARS = "fE"
"""pytest's default value of ``-r``: failures and errors, which the command shows."""


class QuietReporter(TerminalReporter):  # type: ignore[misc]  # final for typing; terminal plugins subclass it
    """Prints nothing that the command shows.

    Args:
        config: configuration of this session.
        columns: width of the command's terminal; the output here is a pipe.
        is_told: returns whether the journal says what was collected, so that the command can show it.
    """

    def __init__(self, config: pytest.Config, columns: int, is_told: Callable[[], bool]) -> None:
        super().__init__(config, sys.stdout)
        self._tw.fullwidth = columns
        self._is_told = is_told

    def pytest_runtest_logstart(self, nodeid: Any, location: Any) -> None:
        """Print nothing: the command shows running tests."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the report for other plugins, and print nothing."""
        self._tests_ran = True
        category, _, _ = self.config.hook.pytest_report_teststatus(report=report, config=self.config)
        self._add_stats(category, [report])

    def pytest_runtest_logfinish(self, nodeid: Any) -> None:
        """Print nothing: the command shows finished tests."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Print the summary of the collection and flush it: a pipe would delay it."""
        super().pytest_collection_finish(session)
        self.flush()

    def summary_errors(self) -> None:
        """Print errors only if the run ended before the command learned of them."""
        if not self._is_told():
            super().summary_errors()

    def summary_failures(self) -> None:
        """Print nothing: the command shows failures."""

    def short_test_summary(self) -> None:
        """Print the summary only if the user asked for one."""
        if self.config.option.reportchars != DEFAULT_CHARS:
            super().short_test_summary()

    def summary_stats(self) -> None:
        """Print the last line only if the command has no counts."""
        if not self._is_told():
            super().summary_stats()


def quieten(config: pytest.Config, columns: int, is_told: Callable[[], bool]) -> None:
    """Replace pytest's reporter by the quiet one, unless there is none or a plugin has replaced it."""
    present = config.pluginmanager.getplugin(NAME)
    # A subclass belongs to a plugin such as pytest-sugar, which shows the run in its own way.
    if type(present) is not TerminalReporter:
        return
    config.pluginmanager.unregister(present)
    config.pluginmanager.register(QuietReporter(config, columns, is_told), NAME)
