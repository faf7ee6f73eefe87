"""The command's standard streams: an output that fails or blocks does not change the run.

The reader may be slow or gone, or there may never have been one: a full or closed pipe, a terminal that hung up, a
full disk. Writing raises nothing and does not block. Text that cannot be written now is kept until the end. Then
the command waits for the reader, within limits and not against a signal.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import socket
import stat
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from disttest.descriptors import is_open
from disttest.limits import OUTPUT_STALL_S

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MOST_KEPT = 4 << 20
"""Number of bytes that are kept for a slow reader. Beyond it, writing waits for the reader."""
_CHUNK = 1 << 16
_SURE = 256
"""Number of bytes that a terminal or pipe accepts in one write if it accepts any."""


class SupportsWrite(Protocol):
    """A text file."""

    def write(self, text: str, /) -> object:
        """Write the text; the return value is ignored."""


def write_trusted(file: SupportsWrite, commands: str) -> None:
    """Write disttest's own commands (lines without the last newline) into a log that defuses everything else."""
    write: Callable[[str], object] = getattr(file, "write_trusted", file.write)
    write(f"{commands}\n")


class Outlet(io.RawIOBase):
    """A raw stream that writes into a descriptor without blocking for long and without raising.

    Args:
        fd: the descriptor; it stays open.
        broken: error number of a descriptor that is unusable from the start; 0 otherwise.
    """

    def __init__(self, fd: int, *, broken: int = 0) -> None:
        super().__init__()
        self._fd = fd
        self.broken = broken
        """Number of the error that ended the stream. Later writes are dropped."""
        self._kept = bytearray()
        self._socket, self._own, self._chunk = _unblocked(fd)
        self._last_s = time.monotonic()
        """Time of the last progress: the reader accepted something, or nothing was waiting."""

    def writable(self) -> bool:
        """Return True, as ``io.RawIOBase`` requires, even after the reader has gone and writes are dropped."""
        return True

    def fileno(self) -> int:
        """Return the descriptor. Its flags are shared with other processes and are never changed."""
        return self._fd

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return os.isatty(self._fd)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write now or later; all of the data counts as written."""
        if not self.broken:
            self._kept += memoryview(data)
            self._push()
            if len(self._kept) > MOST_KEPT:
                self.drain(most=MOST_KEPT)
        return memoryview(data).nbytes

    @property
    def stalled_s(self) -> float:
        """Seconds for which the reader has accepted nothing although data is waiting; 0 if none is waiting."""
        self._push()
        return time.monotonic() - self._last_s if self._kept else 0.0

    @property
    def is_laden(self) -> bool:
        """Whether so much data is waiting that callers should hold back more until the reader accepts some."""
        return len(self._kept) > MOST_KEPT // 2

    def drain(self, *, most: int = 0, until_s: float = float("inf"), wake: int = -1) -> None:
        """Wait for the reader as long as it makes progress; drop the rest.

        Args:
            most: number of bytes that may remain.
            until_s: end of the wait on the monotonic clock.
            wake: descriptor that ends the wait when it becomes readable.
        """
        # The event loop belongs to a higher layer; this module imports nothing of the host.
        poller = select.poll()
        if wake >= 0:
            poller.register(wake, select.POLLIN)
        poller.register(self._own, select.POLLOUT)
        while self._kept and not self.broken:
            self._push()
            left_s = min(until_s, self._last_s + OUTPUT_STALL_S) - time.monotonic()
            if len(self._kept) <= most:
                return
            ready = dict(poller.poll(max(0.0, left_s) * 1000))
            if left_s <= 0 or wake in ready:
                self._break(errno.ETIMEDOUT)

    def _push(self) -> None:
        """Write as much as is possible now."""
        while self._kept and not self.broken:
            try:
                taken = self._send(bytes(self._kept[: self._chunk]))
            except BlockingIOError:
                return
            except OSError as error:
                self._break(error.errno or errno.EIO)
                return
            del self._kept[:taken]
            self._last_s = time.monotonic()
        if not self._kept:
            self._last_s = time.monotonic()

    def _send(self, data: bytes) -> int:
        if self._socket is not None:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        # Here the descriptor itself is used, whose flags stay as they are, so a write could block.
        if self._chunk == _SURE and not _takes_some(self._own):
            raise BlockingIOError
        return os.write(self._own, data)

    def _break(self, number: int) -> None:
        self.broken = number
        self._kept.clear()


class Shielded(io.TextIOWrapper):
    """A text stream whose reader looks for commands: it writes whole lines only, each made harmless."""

    def __init__(self, binary: io.BufferedWriter[Any], shield: Callable[[str], str], **given: Any) -> None:
        super().__init__(binary, **given)
        self._shield = shield
        self._begun = ""

    def write(self, text: str, /) -> int:
        """Write the lines that are now complete."""
        whole, newline, self._begun = (self._begun + text).rpartition("\n")
        if newline:
            super().write(self._shield(whole) + newline)
        return len(text)

    def write_trusted(self, text: str) -> None:
        """Write disttest's own lines unchanged."""
        self.end_line()
        super().write(text)

    def end_line(self) -> None:
        """Complete a line that has begun."""
        if self._begun:
            self.write("\n")


def steady_streams(shield: Callable[[str], str] | None = None) -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` by outlets.

    Descriptors 0, 1 and 2 that were closed lead to ``/dev/null`` from now on. Otherwise a file that is opened
    later, such as the journal, would get one of these numbers, and printed text would be written into it.

    Args:
        shield: makes commands in a text ineffective, for a reader that looks for commands.
    """
    closed = [fd for fd in (0, 1, 2) if not is_open(fd)]
    for fd in closed:
        null = os.open(os.devnull, os.O_RDWR)
        # open() returns the lowest free number, which usually is the closed one.
        if null != fd:
            os.dup2(null, fd)
            os.close(null)
        # Python opens files without inheritance (PEP 446), and programs expect the standard streams.
        os.set_inheritable(fd, True)
    sys.stdout = _steady(1, sys.stdout, shield, closed=1 in closed)
    sys.stderr = _steady(2, sys.stderr, shield, closed=2 in closed)


def outlet(stream: TextIO | None = None) -> Outlet | None:
    """Return the outlet behind a stream (standard output by default); None if the stream was replaced."""
    raw = getattr(getattr(stream or sys.stdout, "buffer", None), "raw", None)
    return raw if isinstance(raw, Outlet) else None


def drain_streams(*, until_s: float = float("inf"), wake: int = -1) -> None:
    """Wait for the readers of both streams; see :meth:`Outlet.drain`."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if isinstance(stream, Shielded):
                stream.end_line()
            stream.flush()
        if (found := outlet(stream)) is not None:
            found.drain(until_s=until_s, wake=wake)


def _steady(fd: int, stream: TextIO | None, shield: Callable[[str], str] | None, *, closed: bool) -> TextIO:
    with contextlib.suppress(OSError, ValueError):
        if stream is not None:
            # Text that the old stream has buffered comes first.
            stream.flush()
    binary = io.BufferedWriter(Outlet(fd, broken=errno.EBADF if closed else 0))
    given: dict[str, Any] = {
        "encoding": getattr(stream, "encoding", None) or "utf-8",
        "errors": getattr(stream, "errors", None) or "backslashreplace",
        "line_buffering": True,
    }
    return Shielded(binary, shield, **given) if shield else io.TextIOWrapper(binary, **given)


def _unblocked(fd: int) -> tuple[socket.socket | None, int, int]:
    """Open a way to write without blocking: a socket or a descriptor, and the number of bytes per write."""
    # Other processes share the flags of the descriptor, so a second description of the same pipe or terminal is
    # opened.
    mode = os.fstat(fd).st_mode
    # A socket cannot be opened again by its path in /proc (ENXIO), and has a flag for a single call.
    if stat.S_ISSOCK(mode):
        return socket.socket(fileno=os.dup(fd)), fd, _CHUNK
    if not stat.S_ISFIFO(mode) and not os.isatty(fd):
        return None, fd, _CHUNK  # files never block
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return None, os.open(f"/proc/self/fd/{fd}", flags), _CHUNK
    # For example EACCES: after `su` the terminal belongs to another user.
    except OSError:
        return None, fd, _SURE


def _takes_some(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    return bool(poller.poll(0))
