"""File descriptors of ours, kept where tests that close or count the low ones do not meet them."""

from __future__ import annotations

import fcntl
import os

_HIGH = 200


def high_copy(fd: int) -> int:
    """A copy of a descriptor, out of the way; programs that are started do not get it."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)


def memory_file(name: str) -> int:
    """A new file in anonymous memory, out of the way; it is gone with the processes that hold it."""
    low = os.memfd_create(name)
    try:
        return high_copy(low)
    finally:
        os.close(low)
