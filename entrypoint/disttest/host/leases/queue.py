"""Who is next: tickets in the lease directory, first come, first served.

A wide request would otherwise starve beside a stream of narrow ones. Everything here happens while the
caller holds the gate of the directory. A ticket is a file that its owner keeps locked, so that the kernel
takes the dead out of the line.
"""

from __future__ import annotations

import re

from disttest.errors import InfrastructureError
from disttest.host.leases.lockfiles import Holder, Lock, LockDirectory

_TICKET = re.compile(r"[0-9]{12}\.ticket")
_MOST_TRIED = 1000


def join_queue(directory: LockDirectory, holder: Holder) -> Lock:
    """Stand in line; under the gate.

    Raises:
        InfrastructureError: no ticket can be made.
    """
    last = max((_number(name) for name in _tickets(directory)), default=0)
    # The next number is free, unless another user has been at pains to take it.
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
    """Leave the line: the file goes before its lock, so that nobody takes a dead number for a new one."""
    directory.remove(ticket.name)
    ticket.release()


def tickets_ahead(directory: LockDirectory, ticket: Lock) -> tuple[str, ...]:
    """Tickets ahead of this one, empty at the head of the line; under the gate. The first one is alive."""
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
    """In order; other names are no tickets, whoever made them."""
    return [name for name in directory.names(".ticket") if _TICKET.fullmatch(name)]


def _name(number: int) -> str:
    return f"{number:012d}.ticket"


def _number(name: str) -> int:
    return int(name.partition(".")[0])
