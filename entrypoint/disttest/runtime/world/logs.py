"""Log files of ranks, limited in size: head and tail are kept, and a mark shows the cut.

The rank appends to the file directly, so it never waits for a reader, and a crash loses nothing: a pipe that is not
read would block the rank. While it runs, holes punched in the middle of an oversized file free the disk space.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from disttest.descriptors import memory_file
from disttest.outgoing import outgoing
from disttest.results.directory import Home

# Values of <linux/falloc.h>. The kernel accepts a hole only together with KEEP_SIZE.
_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_libc = ctypes.CDLL(None, use_errno=True)
_BLOCK = 4096
AT_ONCE = 64
"""Number of logs whose sizes are read at a time: for 1,024 ranks, all took 40 % of the world's processor time."""


class RankLog:
    """Limits the size of one log file from outside the rank that writes it."""

    def __init__(self, path: Path, *, limit: int) -> None:
        self.path = path
        # Holes free disk space in whole blocks only.
        self._half = max(_BLOCK, limit // 2 // _BLOCK * _BLOCK)

    def trim(self) -> None:
        """Free the disk space of the middle if the file exceeds the limit; cheap otherwise.

        Errors are ignored: a test may delete the file, or replace its folder by a file, and its verdict does not
        depend on a log.
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
            # File systems without holes (some network ones) keep the whole file until `finish`.
            _libc.fallocate(
                fd,
                _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE,
                # The parameters are of type off_t. ctypes passes a plain int as a C int of 32 bits.
                ctypes.c_int64(self._half),
                ctypes.c_int64(length),
            )
        finally:
            os.close(fd)

    def finish(self) -> None:
        """Rewrite an oversized file as head, mark and tail, and mask secrets.

        The rank must not write to it any more. If the disk is full, the file stays as it is.
        """
        with contextlib.suppress(OSError):
            kept = self._kept()
            if kept is not None:
                _replace(self.path, kept)

    def publish(self, target: Path) -> None:
        """Append the finished log to another file, which may have content already."""
        with contextlib.suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            kept = self._kept()
            with target.open("ab") as file:
                file.write(self.path.read_bytes() if kept is None else kept)

    def _kept(self) -> bytes | None:
        """Return the content to keep; None if the file can stay unchanged."""
        size = self.path.stat().st_size
        # Most logs are empty.
        if not size:
            return None
        with self.path.open("rb") as file:
            if size <= 2 * self._half:
                data = file.read()
                outgoing.learn(data)
                masked = outgoing.data(data)
                # The usual log has no secret, and is not written again.
                return None if masked is data else masked
            head = file.read(self._half)
            file.seek(-self._half, os.SEEK_END)
            tail = file.read()
        outgoing.learn(head)
        outgoing.learn(tail)
        cut, limit = size - 2 * self._half, 2 * self._half
        mark = f"\n\n[disttest: {cut} bytes cut here: log-limit of [tool.disttest] is {limit} bytes]\n\n"
        return outgoing.data(head, cut_end=True) + mark.encode() + outgoing.data(tail, cut_start=True)

    def tail(self, size: int) -> str:
        """The last ``size`` bytes as masked text; empty if the file cannot be read."""
        try:
            with self.path.open("rb") as file:
                start = max(0, file.seek(0, os.SEEK_END) - size)
                file.seek(start)
                data = outgoing.data(file.read(), cut_start=start > 0)
        except OSError:
            return ""
        return data.decode("utf-8", "replace").strip()

    def append(self, text: str) -> None:
        """Append evidence, such as the stacks of the rank; skip it if the disk is full."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(text.encode("utf-8", "backslashreplace"))


class RankLogs:
    """Limits the sizes of the logs of a world's ranks; in turn if there are many."""

    def __init__(self, logs: Sequence[RankLog]) -> None:
        self._turns = itertools.cycle(logs)
        self._at_once = min(len(logs), AT_ONCE)

    def trim(self) -> None:
        """Trim the next logs."""
        for log in itertools.islice(self._turns, self._at_once):
            log.trim()


def _replace(path: Path, data: bytes) -> None:
    # Written next to the log and renamed, so that a crash leaves the whole file or the short one.
    pending = path.with_suffix(".cut")
    try:
        pending.write_bytes(data)
        pending.replace(path)
    finally:
        pending.unlink(missing_ok=True)


class LogStore:
    """Log files of the ranks of one supervisor; in memory while secrets are masked.

    Anonymous memory vanishes with the processes that hold it, so unmasked text never reaches the disk, even after
    SIGKILL. A filter behind a pipe would block the rank when the filter is slow. Ranks open the memory by a path in /proc.
    """

    def __init__(self, home: Home, *, limit: int) -> None:
        self._home = home
        self._results = home.now()
        self._limit = limit
        self._hidden: dict[str, int] = {}
        # Files created for a test that has not begun.
        self._ahead: tuple[str, ...] = ()

    def prepare(self, logs: Sequence[str]) -> None:
        """Create the files of the next test while the ranks run the current one.

        On ext4, two folders and a file for each rank take longer than a small test.
        """
        self._ahead = tuple(logs)
        # An error here appears again, with its message, when the rank opens the file.
        with contextlib.suppress(OSError):
            self._make(logs)

    def claim(self, logs: Sequence[str]) -> None:
        """Use these files for the test that begins now.

        Raises:
            OSError: they cannot be created.
        """
        # The results directory may have moved since the files were made.
        if self._ahead != tuple(logs) or self._results != self._home.now():
            self._make(logs)
        self._ahead = ()

    def withdraw(self) -> None:
        """Remove the files created for a test that does not begin in this world after all."""
        ahead, self._ahead = self._ahead, ()
        for path in (self._results / log for log in ahead):
            with contextlib.suppress(OSError):
                if not path.stat().st_size:
                    path.unlink()
        for folder in {(self._results / log).parent for log in ahead}:
            # The folder may contain files of other attempts.
            with contextlib.suppress(OSError):
                folder.rmdir()
                folder.parent.rmdir()

    def _make(self, logs: Sequence[str]) -> None:
        self._results = self._home.now()
        paths = [self._results / log for log in logs]
        for folder in {path.parent for path in paths}:
            folder.mkdir(parents=True, exist_ok=True)
        # `Path.touch` makes three system calls per file; one is enough.
        for path in [] if outgoing.active else paths:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def place(self, log: str) -> Path:
        """The final path of a log."""
        return self._results / log

    def open(self, log: str) -> Path:
        """The path that a rank must write to; ``log`` is relative to the results directory."""
        return self.divert(self.place(log), log) if outgoing.active else self.place(log)

    def divert(self, path: Path, name: str = "") -> Path:
        """Replace a path by memory if secrets are masked."""
        if not outgoing.active:
            return path
        name = name or str(path)
        if name not in self._hidden:
            self._hidden[name] = memory_file("disttest-log")
        # Ranks of the same user can open this path while the world process lives; the memory has no other name.
        return Path(f"/proc/{os.getpid()}/fd/{self._hidden[name]}")

    def log(self, log: str) -> RankLog:
        """The log while it is being written."""
        path = self.divert(self._results / log, log) if log in self._hidden else self._results / log
        return RankLog(path, limit=self._limit)

    def finish(self, log: str) -> None:
        """Bring a log into its final form and place; no process may write to it any more."""
        if log not in self._hidden:
            self.log(log).finish()
            return
        self.log(log).publish(self._results / log)
        # The memory is freed with its last descriptor, and the unmasked text with it.
        os.close(self._hidden.pop(log))

    def close(self) -> None:
        """Close the remaining descriptors."""
        for fd in self._hidden.values():
            os.close(fd)
        self._hidden.clear()
