"""Looks into the rank logs below a results directory: excerpts of bounded size, whatever lies there."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from disttest.reports.text import clean, size


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """Head and tail of a log, cleaned. A short log is all head."""

    head: str
    tail: str = ""
    cut_bytes: int = 0
    """How much is missing between the two."""

    def __str__(self) -> str:
        if not self.cut_bytes:
            return self.head + self.tail
        return f"{self.head.rstrip()}\n[… {size(self.cut_bytes)} cut …]\n{self.tail.lstrip()}"


class LogFolder:
    """The logs of one run; ``None`` as the root stands for a run whose logs are not at hand."""

    def __init__(self, root: Path | None) -> None:
        self._root = root.resolve() if root else None
        # The logs of all ranks of a test are in one folder, and links are slow to follow.
        self._inside = lru_cache(maxsize=256)(self._find_folder)

    def path(self, log: str) -> Path | None:
        """The regular file that ``log`` names, or None: missing, a pipe, or outside the results directory."""
        folder, _, name = log.rpartition("/")
        if not name or name in (".", "..") or "\0" in log:
            return None
        parent = self._inside(folder)
        if parent is None:
            return None
        try:
            path = parent / name
            return path if stat.S_ISREG(path.lstat().st_mode) else None
        except OSError:
            return None

    def _find_folder(self, folder: str) -> Path | None:
        """The folder if it lies inside the results directory, wherever its links lead."""
        if self._root is None:
            return None
        try:
            path = (self._root / folder).resolve()
        except OSError:
            return None
        return path if path.is_relative_to(self._root) else None

    def excerpt(self, log: str, *, head_bytes: int, tail_bytes: int) -> Excerpt | None:
        """Read the two ends of a log; None if there is none, or it can not be read."""
        path = self.path(log)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                return _read_ends(file.fileno(), head_bytes=head_bytes, tail_bytes=tail_bytes)
        except OSError:
            return None


def _read_ends(fd: int, *, head_bytes: int, tail_bytes: int) -> Excerpt:
    total = os.fstat(fd).st_size
    if total <= head_bytes + tail_bytes:
        return Excerpt(head=clean(os.pread(fd, total, 0)))
    head = _whole_lines(os.pread(fd, head_bytes, 0), keep_start=True)
    tail = _whole_lines(os.pread(fd, tail_bytes, total - tail_bytes), keep_start=False)
    return Excerpt(head=clean(head), tail=clean(tail), cut_bytes=total - len(head) - len(tail))


def _whole_lines(block: bytes, *, keep_start: bool) -> bytes:
    """Cut at a line's border if one is near, so that neither characters nor escape sequences are split."""
    if keep_start:
        border = block.rfind(b"\n") + 1
        return block[:border] if border > len(block) // 2 else block
    border = block.find(b"\n") + 1
    return block[border:] if 0 < border < len(block) // 2 else block
