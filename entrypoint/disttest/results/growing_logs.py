"""The logs of a test that runs, read while they grow: whole lines, in the order of each rank."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from disttest.host.lines import Lines
from disttest.model import MAIN_RANK
from disttest.safe_open import Tree

CHUNK = 1 << 20
"""Bytes of one log that one look reads."""
_LONGEST_LINE = 1 << 16
_LOG = re.compile(r"rank(\d+)\.log|main\.log")


class GrowingLog:
    """The log of one rank."""

    def __init__(self, rank: int, file: BinaryIO) -> None:
        self.rank = rank
        self._file = file
        self._lines = Lines(_LONGEST_LINE)

    @property
    def waiting(self) -> int:
        """Bytes that nobody has read yet."""
        return max(0, os.fstat(self._file.fileno()).st_size - self._file.tell())

    def skip_all_but(self, newest: int) -> int:
        """Leave out what waits but for its end, and the line that this would cut; returns the bytes left out.

        Args:
            newest: how many bytes stay, fewer than wait.
        """
        begun = len(self._lines.rest)
        before = self.waiting - newest - 1
        self._file.seek(before, os.SEEK_CUR)
        cut = self._file.readline(newest + 1)  # no more than its end where a line begins behind it
        self._lines = Lines(_LONGEST_LINE)
        return begun + before + len(cut)

    def news(self) -> list[bytes]:
        """The lines that are new, as far as one look goes."""
        return self._lines.feed(self._file.read(CHUNK))

    def rest(self) -> list[bytes]:
        """What is still to be read, and the line without an end."""
        found: list[bytes] = []
        while chunk := self._file.read(CHUNK):
            found += self._lines.feed(chunk)
        self._file.close()
        return [*found, *filter(None, [bytes(self._lines.rest)])]


class GrowingLogs:
    """The logs of one test: those that it has so far, of ranks that it has started itself, too.

    Args:
        folder: of the attempt's logs, relative to the results directory.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._opened: dict[str, GrowingLog] = {}

    def found_in(self, results: Path) -> Collection[GrowingLog]:
        """All, new ones opened; where values are to be hidden they come when the test is over."""
        for path in sorted((results / self._folder).glob("*.log")):
            if path.name not in self._opened and (match := _LOG.fullmatch(path.name)) is not None:
                rank = int(match[1]) if match[1] else MAIN_RANK
                with contextlib.suppress(OSError):
                    file = os.fdopen(Tree(results).open(f"{self._folder}/{path.name}"), "rb")
                    self._opened[path.name] = GrowingLog(rank, file)
        return self._opened.values()
