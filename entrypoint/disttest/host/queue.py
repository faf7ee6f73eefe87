"""Who is next: tickets in the lease directory, first come, first served.

A wide request would otherwise starve beside a stream of narrow ones. Everything here happens while the
caller holds the gate of the directory. A ticket is a file that its owner keeps locked, so that the kernel
takes the dead out of the line.
"""

from __future__ import annotations

from disttest.host.lockfiles import Holder, Lock, LockDirectory

_SUFFIX = ".ticket"


def join_queue(directory: LockDirectory, holder: Holder) -> Lock:
    """Stand in line; under the gate."""
    last = max((_number(name) for name in _tickets(directory)), default=0)
    ticket = directory.try_lock(f"{last + 1:012d}{_SUFFIX}")
    assert ticket is not None, "a new ticket is locked by nobody"
    ticket.sign(holder)
    return ticket


def leave_queue(directory: LockDirectory, ticket: Lock) -> None:
    """Leave the line: the file goes before its lock, so that nobody takes a dead number for a new one."""
    (directory.path / ticket.name).unlink(missing_ok=True)
    ticket.release()


def first_ahead(directory: LockDirectory, ticket: Lock) -> str | None:
    """The first living ticket ahead of this one, None at the head of the line; under the gate."""
    for name in _tickets(directory):
        if name >= ticket.name:
            break
        lock = directory.try_lock(name)
        if lock is None:
            return name
        leave_queue(directory, lock)
    return None


def _tickets(directory: LockDirectory) -> list[str]:
    return sorted(path.name for path in directory.path.glob(f"*{_SUFFIX}"))


def _number(name: str) -> int:
    digits = name.removesuffix(_SUFFIX)
    return int(digits) if digits.isdigit() else 0
