"""File descriptors of ours, kept where tests that close or count the low ones do not meet them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_HIGH = 200


def high_copy(fd: int) -> int:
    """A copy of a descriptor, out of the way; programs that are started do not get it."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)


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
