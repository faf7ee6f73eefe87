"""Read excerpts of limited size from the rank logs in a results directory, whatever is there."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from disttest.reports.text import clean, size
from disttest.results.narrative import without_stacks
from disttest.safe_open import Tree

# Bytes of a log's end that are searched for text before appended stacks.
_READ = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """Head and tail of a log, cleaned. A short log is all head."""

    head: str
    tail: str = ""
    cut_bytes: int = 0
    """Number of bytes missing between the two."""

    def __str__(self) -> str:
        if not self.cut_bytes:
            return self.head + self.tail
        return f"{self.head.rstrip()}\n[… {size(self.cut_bytes)} cut …]\n{self.tail.lstrip()}"


class LogFolder:
    """The logs of one run; ``None`` as root if they are not available."""

    def __init__(self, root: Path | None) -> None:
        self._root = root or Path()
        self._tree: Tree | None = None
        with contextlib.suppress(OSError):
            self._tree = Tree(root) if root else None

    def path(self, log: str) -> Path | None:
        """Return the regular file named ``log``; None if it is missing, a pipe, a link, or outside the directory."""
        fd = self._open(log)
        if fd is None:
            return None
        os.close(fd)
        return self._root / log

    def _open(self, log: str) -> int | None:
        if self._tree is None:
            return None
        try:
            return self._tree.open(log)
        except OSError:
            return None

    def excerpt(self, log: str, *, head_bytes: int, tail_bytes: int) -> Excerpt | None:
        """Read the two ends of a log; None if it is missing or unreadable."""
        fd = self._open(log)
        if fd is None:
            return None
        try:
            return _read_ends(fd, head_bytes=head_bytes, tail_bytes=tail_bytes)
        except OSError:
            return None
        finally:
            os.close(fd)

    def own_output(self, log: str, limit: int) -> str:
        """Return the end of a rank's own output, up to ``limit`` characters; empty if there is none."""
        excerpt = self.excerpt(log, head_bytes=0, tail_bytes=_READ)
        text = without_stacks(excerpt.tail or excerpt.head) if excerpt else ""
        # The cut goes through a line, which is left out unless it is the only one.
        return text if len(text) <= limit else text[-limit:].partition("\n")[2] or text[-limit:]


def _read_ends(fd: int, *, head_bytes: int, tail_bytes: int) -> Excerpt:
    total = os.fstat(fd).st_size
    # A log that fits is shown completely.
    if total <= head_bytes + tail_bytes:
        return Excerpt(head=clean(os.pread(fd, total, 0)))
    head = _whole_lines(os.pread(fd, head_bytes, 0), keep_start=True)
    tail = _whole_lines(os.pread(fd, tail_bytes, total - tail_bytes), keep_start=False)
    return Excerpt(head=clean(head), tail=clean(tail), cut_bytes=total - len(head) - len(tail))


def _whole_lines(block: bytes, *, keep_start: bool) -> bytes:
    """Cut at a line border if one is near, so that neither characters nor escape sequences are split."""
    if keep_start:
        border = block.rfind(b"\n") + 1
        return block[:border] if border > len(block) // 2 else block
    border = block.find(b"\n") + 1
    return block[border:] if 0 < border < len(block) // 2 else block
