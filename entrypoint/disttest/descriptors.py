"""File descriptors of ours, kept where tests that close or count the low ones do not meet them."""

from __future__ import annotations

import fcntl
import io
import os
import resource
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_HIGH = 200
"""Ours lie above it; below it where fewer descriptors are allowed (``ulimit -n``)."""
MOST_AT_ONCE = 253
"""Descriptors that go with one message; SCM_MAX_FD of the kernel."""


def high_copy(fd: int) -> int:
    """A copy of a descriptor, out of the way; programs that are started do not get it."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = _HIGH if allowed == resource.RLIM_INFINITY else min(_HIGH, allowed // 2)
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)


def is_open(fd: int) -> bool:
    """Whether the number leads anywhere."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def append_to(path: str | Path) -> int:
    """A log, open at its end, so that what several processes write into it follows each other.

    Raises:
        OSError: it cannot be opened; its folder must be there.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def point_output_at(path: str | Path) -> None:
    """Send this process's output, tracebacks included, to a log."""
    fd = append_to(path)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def memory_file(name: str) -> int:
    """A new file in anonymous memory, out of the way; it is gone with the processes that hold it."""
    low = os.memfd_create(name)
    try:
        return high_copy(low)
    finally:
        os.close(low)


def take_descriptors(received: Sequence[int], numbers: Sequence[int]) -> None:
    """Give descriptors of another process the numbers that they had there; this process keeps no others.

    Args:
        received: the descriptors, in any place.
        numbers: one for each. Standard ones that are missing are closed, as they were there.
    """
    above = max((*numbers, *received), default=0) + 1
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in received]
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:  # noqa: PTH208
        if fd not in copies:
            _close(fd)
    for copy, number in zip(copies, numbers, strict=True):
        os.dup2(copy, number)
        os.close(copy)


def new_streams() -> None:
    """Make the standard streams anew, as the interpreter does when it starts: what they lead to has changed."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = _stream(fd, mode, getattr(sys, f"__{name}__"))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream(fd: int, mode: str, before: Any) -> Any:
    """A stream with the encoding and buffer that the interpreter has chosen; None for a descriptor that is closed."""
    if not is_open(fd):
        return None
    unbuffered = bool(getattr(before, "write_through", False))  # PYTHONUNBUFFERED, or python -u
    buffering = 0 if unbuffered and mode == "w" else -1
    binary: Any = open(fd, f"{mode}b", buffering, closefd=False)  # noqa: SIM115 - it stays
    return io.TextIOWrapper(
        binary,
        encoding=getattr(before, "encoding", None),
        errors=getattr(before, "errors", None),
        newline="\n",
        line_buffering=not unbuffered and (fd == 2 or os.isatty(fd)),
        write_through=unbuffered,
    )


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:  # that of the look itself
        return
