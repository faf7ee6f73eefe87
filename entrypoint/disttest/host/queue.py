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


def tickets_ahead(directory: LockDirectory, ticket: Lock) -> tuple[str, ...]:
    """Tickets ahead of this one, empty at the head of the line; under the gate. The first one is alive."""
    ahead = [name for name in _tickets(directory) if name < ticket.name]
    while ahead:
        lock = directory.try_lock(ahead[0])
        if lock is None:
            break
        leave_queue(directory, lock)
        ahead.pop(0)
    return tuple(ahead)


def _tickets(directory: LockDirectory) -> list[str]:
    return sorted(path.name for path in directory.path.glob(f"*{_SUFFIX}"))


def _number(name: str) -> int:
    digits = name.removesuffix(_SUFFIX)
    return int(digits) if digits.isdigit() else 0
