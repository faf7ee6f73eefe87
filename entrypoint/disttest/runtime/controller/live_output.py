"""What ranks print while their test runs, for who gives pytest ``-s``: whole lines, each with its rank in front."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import pytest

from disttest.host.lines import Lines
from disttest.model import rank_name

_LONGEST_LINE = 1 << 16
_CHUNK = 1 << 20
_COLOURS = ("cyan", "yellow", "green", "purple", "blue")


class _RankLog:
    """The log of one rank, which grows; where values are to be hidden it comes when the test is over."""

    def __init__(self, rank: int, path: Path) -> None:
        self.rank = rank
        self._path = path
        self._file: BinaryIO | None = None
        self._lines = Lines(_LONGEST_LINE)

    def read(self) -> list[bytes]:
        """The lines that are new."""
        if self._file is None:
            with contextlib.suppress(OSError):
                self._file = self._path.open("rb")
        return self._lines.feed(self._file.read(_CHUNK)) if self._file is not None else []

    def rest(self) -> list[bytes]:
        """What is still to be read, and the line without an end."""
        found = []
        while more := self.read():
            found += more
        if self._file is not None:
            self._file.close()
        return [*found, *filter(None, [bytes(self._lines.rest)])]


class LiveOutput:
    """Follows the logs of the tests that run."""

    def __init__(self, config: pytest.Config, results: Callable[[], Path]) -> None:
        self._reporter = config.pluginmanager.getplugin("terminalreporter")
        self._results = results
        self._is_asked = config.getoption("capture", "fd") == "no" and self._reporter is not None
        self._followed: dict[str, list[_RankLog]] = {}

    @property
    def is_following(self) -> bool:
        """Whether somebody waits for output."""
        return bool(self._followed)

    def begin(self, world_id: str, logs: Mapping[int, str]) -> None:
        """Follow the logs of a test that starts.

        Args:
            world_id: of its world, which runs one test at a time.
            logs: rank -> its log, relative to the results directory.
        """
        if self._is_asked:
            self._followed[world_id] = [_RankLog(rank, self._results() / log) for rank, log in logs.items()]

    def look(self) -> None:
        """Show what is new."""
        for logs in self._followed.values():
            for log in logs:
                self._show(log.rank, log.read())

    def end(self, world_id: str) -> None:
        """Show what is left of a test that has its verdict."""
        for log in self._followed.pop(world_id, ()):
            self._show(log.rank, log.rest())

    def _show(self, rank: int, lines: list[bytes]) -> None:
        if not lines:
            return
        self._reporter.ensure_newline()
        tag = self._reporter._tw.markup(f"[{rank_name(rank)}]", **{_COLOURS[rank % len(_COLOURS)]: True})  # noqa: SLF001
        for line in lines:
            self._reporter.write_line(f"{tag} {line.decode('utf-8', 'replace')}")
