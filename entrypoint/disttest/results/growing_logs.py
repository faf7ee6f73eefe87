"""Read the logs of a running test while they grow: whole lines, in order for each rank."""

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
"""Maximum number of bytes read from one log per look."""
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
        """Number of unread bytes."""
        # A test may truncate its own log. Freed parts of a log that is too long stay as holes and do not
        # shorten it.
        return max(0, os.fstat(self._file.fileno()).st_size - self._file.tell())

    def skip_all_but(self, newest: int) -> int:
        """Skip unread bytes except the last ones, and the line that this would cut; return the number of skipped bytes.

        Args:
            newest: number of bytes to keep, fewer than are unread.
        """
        begun = len(self._lines.rest)
        before = self.waiting - newest - 1
        self._file.seek(before, os.SEEK_CUR)
        # If a line begins right after the skipped bytes, this reads only the end of the previous line.
        cut = self._file.readline(newest + 1)
        self._lines = Lines(_LONGEST_LINE)
        return begun + before + len(cut)

    def news(self) -> list[bytes]:
        """Return new lines, up to the limit of one look."""
        return self._lines.feed(self._file.read(CHUNK))

    def rest(self) -> list[bytes]:
        """Return all remaining lines, including one without an end."""
        found: list[bytes] = []
        while chunk := self._file.read(CHUNK):
            found += self._lines.feed(chunk)
        self._file.close()
        return [*found, *filter(None, [bytes(self._lines.rest)])]


class GrowingLogs:
    """The logs of one test that exist so far, including those of ranks that the test has started.

    Args:
        folder: folder of the attempt's logs, relative to the results directory.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._opened: dict[str, GrowingLog] = {}

    def found_in(self, results: Path) -> Collection[GrowingLog]:
        """Return all logs, opening new ones. While secrets are masked, logs appear only after the test."""
        # Tests can write into this folder, so `Tree` refuses links and pipes in it.
        for path in sorted((results / self._folder).glob("*.log")):
            if path.name not in self._opened and (match := _LOG.fullmatch(path.name)) is not None:
                rank = int(match[1]) if match[1] else MAIN_RANK
                with contextlib.suppress(OSError):
                    file = os.fdopen(Tree(results).open(f"{self._folder}/{path.name}"), "rb")
                    self._opened[path.name] = GrowingLog(rank, file)
        return self._opened.values()
