"""What ranks print while their test runs, for who gives pytest ``-s``: whole lines, each with its rank in front."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from disttest.reports.text import rank_tag
from disttest.results.growing_logs import GrowingLogs


class LiveOutput:
    """Follows the logs of the tests that run."""

    def __init__(self, config: pytest.Config, results: Callable[[], Path]) -> None:
        self._reporter = config.pluginmanager.getplugin("terminalreporter")
        self._config = config
        self._results = results
        self._is_asked = config.getoption("capture", "fd") == "no" and self._reporter is not None
        self._followed: dict[str, GrowingLogs] = {}

    @property
    def is_following(self) -> bool:
        """Whether somebody waits for output."""
        return bool(self._followed)

    def begin(self, world_id: str, folder: str) -> None:
        """Follow the logs of a test that starts.

        Args:
            world_id: of its world, which runs one test at a time.
            folder: of its logs, relative to the results directory.
        """
        if self._is_asked:
            self._followed[world_id] = GrowingLogs(folder)

    def look(self) -> None:
        """Show what is new."""
        for logs in self._followed.values():
            for log in logs.found_in(self._results()):
                self._show(log.rank, log.news())

    def end(self, world_id: str) -> None:
        """Show what is left of a test that has its verdict."""
        if (logs := self._followed.pop(world_id, None)) is not None:
            for log in logs.found_in(self._results()):
                self._show(log.rank, log.rest())

    def _show(self, rank: int, lines: list[bytes]) -> None:
        if not lines:
            return
        writer = self._config.get_terminal_writer()
        self._reporter.ensure_newline()
        if writer.width_of_current_line:
            # Behind a dot, which the reporter takes for no line of its own with -s.
            writer.line()
        tag = rank_tag(rank, colour=writer.hasmarkup)
        for line in lines:
            writer.line(f"{tag} {line.decode('utf-8', 'replace')}")
        writer.flush()  # into a pipe, as that of a job's log, Python writes nothing before it has a lot
