"""A rank's log file, capped: the head and the tail are kept, the cut is marked.

The rank appends to the file itself, so it never waits for a reader, and a crash loses nothing. While it
runs, the middle of a file that is too long is given back to the file system by punching a hole.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

from disttest.descriptors import memory_file
from disttest.masking import masker
from disttest.results.directory import Home

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
        """Free the disk space of the middle, if the file is over the limit; cheap when it is not.

        A test may remove the file, or put a file in the place of its folder: its verdict does not depend on a log.
        """
        with contextlib.suppress(OSError):
            size = self.path.stat().st_size
            if size > 2 * self._half:
                self._punch(size)

    def _punch(self, size: int) -> None:
        length = (size - 2 * self._half) // _BLOCK * _BLOCK
        if length <= 0:
            return
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            # A file system that cannot do it (some network ones) keeps the whole file until `finish`.
            _libc.fallocate(
                fd,
                _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE,
                ctypes.c_int64(self._half),
                ctypes.c_int64(length),
            )
        finally:
            os.close(fd)

    def finish(self) -> None:
        """Rewrite a file over the limit as head, mark and tail, and hide what is to be hidden.

        The rank must not write to it any more. A disk that has no room leaves the file as it is.
        """
        with contextlib.suppress(OSError):
            kept = self._kept()
            if kept is not None:
                _replace(self.path, kept)

    def publish(self, target: Path) -> None:
        """The same, but into another file, which may have a beginning already."""
        with contextlib.suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            kept = self._kept()
            with target.open("ab") as file:
                file.write(self.path.read_bytes() if kept is None else kept)

    def _kept(self) -> bytes | None:
        """What is to be kept; None if that is all of it, as it is."""
        size = self.path.stat().st_size
        if not size:  # as most logs are
            return None
        with self.path.open("rb") as file:
            if size <= 2 * self._half:
                data = file.read()
                masker.learn(data)
                masked = masker.data(data)
                return None if masked is data else masked
            head = file.read(self._half)
            file.seek(-self._half, os.SEEK_END)
            tail = file.read()
        masker.learn(head)
        masker.learn(tail)
        mark = f"\n\n[disttest: {size - 2 * self._half} bytes cut here, log limit reached]\n\n".encode()
        return masker.data(head, cut_end=True) + mark + masker.data(tail, cut_start=True)

    def tail(self, size: int) -> str:
        """The last bytes as text, without what is to be hidden; empty if the file cannot be read."""
        try:
            with self.path.open("rb") as file:
                start = max(0, file.seek(0, os.SEEK_END) - size)
                file.seek(start)
                data = masker.data(file.read(), cut_start=start > 0)
        except OSError:
            return ""
        return data.decode("utf-8", "replace").strip()

    def append(self, text: str) -> None:
        """Add evidence to the end, such as the stacks of the rank; without room on the disk it is left out."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(text.encode("utf-8", "backslashreplace"))


def _replace(path: Path, data: bytes) -> None:
    pending = path.with_suffix(".cut")
    try:
        pending.write_bytes(data)
        pending.replace(path)
    finally:
        pending.unlink(missing_ok=True)


class LogStore:
    """Where the ranks of one supervisor write: their log files, or memory while there are values to hide.

    Nothing that has not been masked touches the disk then, however the run ends: anonymous memory goes with the
    processes that hold it. Ranks open it by a path as they would a file.
    """

    def __init__(self, home: Home, *, limit: int) -> None:
        self._home = home
        self._results = home.now()
        self._limit = limit
        self._hidden: dict[str, int] = {}
        # Made for a test that has not begun.
        self._ahead: tuple[str, ...] = ()

    def prepare(self, logs: Sequence[str]) -> None:
        """Make the files of the test that comes next, while the ranks are busy with this one.

        To make a file takes longer on many file systems than a small test does, and the ranks would wait for it.
        """
        self._ahead = tuple(logs)
        with contextlib.suppress(OSError):  # who opens them will say what is wrong
            self._make(logs)

    def claim(self, logs: Sequence[str]) -> None:
        """The test that these belong to begins now.

        Raises:
            OSError: they cannot be made.
        """
        if self._ahead != tuple(logs) or self._results != self._home.now():
            self._make(logs)
        self._ahead = ()

    def withdraw(self) -> None:
        """Take back what was made for a test that does not begin here after all."""
        ahead, self._ahead = self._ahead, ()
        for path in (self._results / log for log in ahead):
            with contextlib.suppress(OSError):
                if not path.stat().st_size:
                    path.unlink()
        for folder in {(self._results / log).parent for log in ahead}:
            with contextlib.suppress(OSError):  # there is something else in it
                folder.rmdir()
                folder.parent.rmdir()

    def _make(self, logs: Sequence[str]) -> None:
        self._results = self._home.now()
        paths = [self._results / log for log in logs]
        for folder in {path.parent for path in paths}:
            folder.mkdir(parents=True, exist_ok=True)
        for path in [] if masker.active else paths:  # ``touch`` would ask three times whether it is there
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def place(self, log: str) -> Path:
        """Where a log comes to lie in the end."""
        return self._results / log

    def open(self, log: str) -> Path:
        """The path that a rank is to write to; ``log`` is relative to the results directory."""
        return self.divert(self.place(log), log) if masker.active else self.place(log)

    def divert(self, path: Path, name: str = "") -> Path:
        """A path in memory instead, if there are values to hide."""
        if not masker.active:
            return path
        name = name or str(path)
        if name not in self._hidden:
            self._hidden[name] = memory_file("disttest-log")
        return Path(f"/proc/{os.getpid()}/fd/{self._hidden[name]}")

    def log(self, log: str) -> RankLog:
        """The log as it is being written."""
        path = self.divert(self._results / log, log) if log in self._hidden else self._results / log
        return RankLog(path, limit=self._limit)

    def finish(self, log: str) -> None:
        """Bring a log into its final form and place; nobody may write to it any more."""
        if log not in self._hidden:
            self.log(log).finish()
            return
        self.log(log).publish(self._results / log)
        os.close(self._hidden.pop(log))

    def close(self) -> None:
        """Give back what is left."""
        for fd in self._hidden.values():
            os.close(fd)
        self._hidden.clear()
