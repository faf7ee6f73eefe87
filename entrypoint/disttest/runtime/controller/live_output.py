"""Show the output of ranks while their test runs, if pytest has ``-s``: whole lines, prefixed by the rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from disttest.reports.text import rank_tag
from disttest.results.growing_logs import GrowingLogs


class LiveOutput:
    """Follows the logs of the running tests."""

    def __init__(self, config: pytest.Config, results: Callable[[], Path]) -> None:
        self._reporter = config.pluginmanager.getplugin("terminalreporter")
        self._config = config
        self._results = results
        self._is_asked = config.getoption("capture", "fd") == "no" and self._reporter is not None
        self._followed: dict[str, GrowingLogs] = {}

    @property
    def is_following(self) -> bool:
        """Whether any log is followed."""
        return bool(self._followed)

    def begin(self, world_id: str, folder: str) -> None:
        """Follow the logs of a test that starts.

        Args:
            world_id: world of the test, which runs one test at a time.
            folder: folder of its logs, relative to the results directory.
        """
        if self._is_asked:
            self._followed[world_id] = GrowingLogs(folder)

    def look(self) -> None:
        """Show new lines."""
        for logs in self._followed.values():
            for log in logs.found_in(self._results()):
                self._show(log.rank, log.news())

    def end(self, world_id: str) -> None:
        """Show the remaining lines of a test that has its result."""
        if (logs := self._followed.pop(world_id, None)) is not None:
            for log in logs.found_in(self._results()):
                self._show(log.rank, log.rest())

    def _show(self, rank: int, lines: list[bytes]) -> None:
        if not lines:
            return
        writer = self._config.get_terminal_writer()
        self._reporter.ensure_newline()
        if writer.width_of_current_line:
            # The line may end with pytest's dot, which its reporter does not count as a line with -s.
            writer.line()
        tag = rank_tag(rank, colour=writer.hasmarkup)
        for line in lines:
            writer.line(f"{tag} {line.decode('utf-8', 'replace')}")
        # Python buffers output to a pipe, as in a job's log, until it has a large block.
        writer.flush()
