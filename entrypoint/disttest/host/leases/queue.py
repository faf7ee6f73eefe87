"""The queue for GPUs: tickets in the lease directory, first come, first served.

Without the queue, a wide request would starve in a stream of narrow ones. There is no backfill: runs hold GPUs for
minutes, and the cost of strict order is small in comparison. The caller holds the gate of the directory in all
functions here. A ticket is a file that its owner keeps locked, so the kernel removes dead processes from the queue.
"""

from __future__ import annotations

import re

from disttest.errors import InfrastructureError
from disttest.host.leases.lockfiles import Holder, Lock, LockDirectory

_TICKET = re.compile(r"[0-9]{12}\.ticket")
_MOST_TRIED = 1000


def join_queue(directory: LockDirectory, holder: Holder) -> Lock:
    """Join the queue. The caller holds the gate.

    Raises:
        InfrastructureError: no ticket can be created.
    """
    last = max((_number(name) for name in _tickets(directory)), default=0)
    # The next number is free, unless another user has taken it on purpose.
    for number in range(last + 1, last + _MOST_TRIED):
        ticket = directory.try_lock(_name(number))
        if ticket is not None:
            ticket.sign(holder)
            return ticket
    raise InfrastructureError(
        f"no place in the line for GPUs: {directory.path / _name(last + 1)} cannot be made. "
        "Is the disk full? Otherwise remove the tickets from the directory while no run waits."
    )


def leave_queue(directory: LockDirectory, ticket: Lock) -> None:
    """Leave the queue."""
    # The file is removed before its lock is released, so that its number is not mistaken for a new ticket.
    directory.remove(ticket.name)
    ticket.release()


def tickets_ahead(directory: LockDirectory, ticket: Lock) -> tuple[str, ...]:
    """Return the tickets ahead of this one; empty at the head of the queue."""
    # The first one belongs to a living process.
    ahead = [name for name in _tickets(directory) if name < ticket.name]
    while ahead:
        lock = directory.try_lock(ahead[0])
        if lock is not None:
            leave_queue(directory, lock)
        elif directory.is_lock(ahead[0]):
            break
        ahead.pop(0)
    return tuple(ahead)


def _tickets(directory: LockDirectory) -> list[str]:
    """Return the tickets in order; files with other names are ignored."""
    return [name for name in directory.names(".ticket") if _TICKET.fullmatch(name)]


def _name(number: int) -> str:
    return f"{number:012d}.ticket"


def _number(name: str) -> int:
    return int(name.partition(".")[0])
