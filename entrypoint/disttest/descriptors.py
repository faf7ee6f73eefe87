"""File descriptors that disttest keeps open, placed above the low numbers that tests close or count."""

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
"""Lowest number of such a descriptor. It is lower where ``ulimit -n`` allows fewer descriptors."""
MOST_AT_ONCE = 253
"""Largest number of descriptors in one message over a socket: SCM_MAX_FD of the Linux kernel."""


def high_copy(fd: int) -> int:
    """Duplicate a descriptor to a high number. Programs that this process starts do not inherit it."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = _HIGH if allowed == resource.RLIM_INFINITY else min(_HIGH, allowed // 2)
    # F_DUPFD takes the lowest free number from here on. It fails if the limit allows no such number.
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)


def move_high(fd: int) -> int:
    """Move a descriptor to a high number."""
    try:
        return high_copy(fd)
    finally:
        os.close(fd)


def is_open(fd: int) -> bool:
    """Return whether the number is an open descriptor."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def append_to(path: str | Path) -> int:
    """Open a log for appending, so that output of several processes does not overwrite each other.

    Raises:
        OSError: it cannot be opened; its folder must exist.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def point_output_at(path: str | Path) -> None:
    """Send this process's output, tracebacks included, to a log."""
    fd = append_to(path)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def memory_file(name: str) -> int:
    """Create a file in anonymous memory at a high number. It disappears with the last process that holds it."""
    return move_high(os.memfd_create(name))


def take_descriptors(received: Sequence[int], numbers: Sequence[int]) -> None:
    """Give received descriptors the numbers that they had in the other process, and close all others of this one.

    Args:
        received: the descriptors, in any order of numbers.
        numbers: the number of each. A standard stream that is missing is closed, as it was in the other process.
    """
    # Above all numbers, so that `dup2` below overwrites no copy that is still needed.
    above = max((*numbers, *received), default=0) + 1
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in received]
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:  # noqa: PTH208
        if fd not in copies:
            _close(fd)
    for copy, number in zip(copies, numbers, strict=True):
        # Python's dup2 makes the number inheritable, as it was in the other process.
        os.dup2(copy, number)
        os.close(copy)


def new_streams() -> None:
    """Create the standard streams again, as the interpreter does when it starts: their descriptors have changed."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = _stream(fd, mode, getattr(sys, f"__{name}__"))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream(fd: int, mode: str, before: Any) -> Any:
    """Open a stream with the encoding and buffering that the interpreter chose before; None for a closed descriptor."""
    if not is_open(fd):
        return None
    unbuffered = bool(getattr(before, "write_through", False))  # PYTHONUNBUFFERED, or python -u
    buffering = 0 if unbuffered and mode == "w" else -1
    binary: Any = open(fd, f"{mode}b", buffering, closefd=False)  # noqa: SIM115 - it stays open
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
    except OSError:  # the descriptor of the directory listing itself
        return
