"""A rank's log file, capped: the head and the tail are kept, the cut is marked.

The rank appends to the file itself, so it never waits for a reader, and a crash loses nothing. While it
runs, the middle of a file that is too long is given back to the file system by punching a hole.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_libc = ctypes.CDLL(None, use_errno=True)
_BLOCK = 4096


class RankLog:
    """Watches the size of one log file from outside the rank that writes it."""

    def __init__(self, path: Path, *, limit: int) -> None:
        self.path = path
        self._half = max(_BLOCK, limit // 2 // _BLOCK * _BLOCK)

    def trim(self) -> None:
        """Free the disk space of the middle, if the file is over the limit; cheap when it is not."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return
        if size > 2 * self._half:
            self._punch(size)

    def _punch(self, size: int) -> None:
        length = (size - 2 * self._half) // _BLOCK * _BLOCK
        if length <= 0:
            return
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            # A file system that can not do it (some network ones) keeps the whole file until `finish`.
            _libc.fallocate(
                fd,
                _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE,
                ctypes.c_int64(self._half),
                ctypes.c_int64(length),
            )
        finally:
            os.close(fd)

    def finish(self) -> None:
        """Rewrite a file over the limit as head, mark and tail; the rank must not write to it any more."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return
        if size <= 2 * self._half:
            return
        cut = size - 2 * self._half
        short = self.path.with_suffix(".cut")
        with self.path.open("rb") as source, short.open("wb") as target:
            target.write(source.read(self._half))
            target.write(f"\n\n[disttest: {cut} bytes cut here, log limit reached]\n\n".encode())
            source.seek(-self._half, os.SEEK_END)
            target.write(source.read())
        short.replace(self.path)

    def tail(self, size: int) -> str:
        """The last bytes as text; empty if there is no file."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - size))
                return file.read().decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return ""

    def append(self, text: str) -> None:
        """Add evidence to the end, such as the stacks of the rank."""
        with self.path.open("ab") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
