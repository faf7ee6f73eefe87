"""What ranks print while their test runs, for who gives pytest ``-s``: whole lines, each with its rank in front."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import BinaryIO

import pytest

from disttest.beneath import Tree
from disttest.host.lines import Lines
from disttest.model import MAIN_RANK, rank_name

_LONGEST_LINE = 1 << 16
_CHUNK = 1 << 20
_COLOURS = ("cyan", "yellow", "green", "purple", "blue")
_LOG = re.compile(r"rank(\d+)\.log|main\.log")


class _GrowingLog:
    """The log of one rank."""

    def __init__(self, rank: int, file: BinaryIO) -> None:
        self.rank = rank
        self._file = file
        self._lines = Lines(_LONGEST_LINE)

    def news(self) -> list[bytes]:
        """The lines that are new, as far as one look goes."""
        return self._lines.feed(self._file.read(_CHUNK))

    def rest(self) -> list[bytes]:
        """What is still to be read, and the line without an end."""
        found: list[bytes] = []
        while chunk := self._file.read(_CHUNK):
            found += self._lines.feed(chunk)
        self._file.close()
        return [*found, *filter(None, [bytes(self._lines.rest)])]


class _TestLogs:
    """The logs of one test: those that it has so far, of ranks that it has started itself, too."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._opened: dict[str, _GrowingLog] = {}

    def found_in(self, results: Path) -> Collection[_GrowingLog]:
        """All, new ones opened; where values are to be hidden they come when the test is over."""
        for path in sorted((results / self._folder).glob("*.log")):
            if path.name not in self._opened and (match := _LOG.fullmatch(path.name)) is not None:
                rank = int(match[1]) if match[1] else MAIN_RANK
                with contextlib.suppress(OSError):
                    file = os.fdopen(Tree(results).open(f"{self._folder}/{path.name}"), "rb")
                    self._opened[path.name] = _GrowingLog(rank, file)
        return self._opened.values()


class LiveOutput:
    """Follows the logs of the tests that run."""

    def __init__(self, config: pytest.Config, results: Callable[[], Path]) -> None:
        self._reporter = config.pluginmanager.getplugin("terminalreporter")
        self._config = config
        self._results = results
        self._is_asked = config.getoption("capture", "fd") == "no" and self._reporter is not None
        self._followed: dict[str, _TestLogs] = {}

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
            self._followed[world_id] = _TestLogs(folder)

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
        if (
            writer.width_of_current_line
        ):  # behind a dot, which the reporter takes for no line of its own with -s
            writer.line()
        tag = writer.markup(f"[{rank_name(rank)}]", **{_COLOURS[rank % len(_COLOURS)]: True})
        for line in lines:
            writer.line(f"{tag} {line.decode('utf-8', 'replace')}")
