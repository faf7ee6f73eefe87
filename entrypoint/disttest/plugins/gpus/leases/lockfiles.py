"""Locks that runners on one host share: files in a directory, locked with flock(2).

The kernel releases a lock when the last process that inherited it ends, however it ends. A rank that cannot be
killed therefore keeps its GPU from being leased again. Lock files remain; after SIGKILL nothing has to be cleaned.
flock (https://man7.org/linux/man-pages/man2/flock.2.html) works between containers that mount the same directory of the
host, and not on network file systems.

Waiting runs queue for GPUs by tickets, first come, first served. Without the queue, a wide request would starve in a
stream of narrow ones. There is no backfill: runs hold GPUs for minutes, and the cost of strict order is small in
comparison. The caller holds the gate of the directory in all functions of the queue. A ticket is a file that its
owner keeps locked, so the kernel removes dead processes from the queue.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from disttest.errors import InfrastructureError
from disttest.model import UNREADABLE, Frozen
from disttest.plugins.gpus.leases.shared_folder import SharedFolder, plain_text, refusal

DEFAULT_DIRECTORY = Path("/run/lock/disttest")

_WITHOUT_ROOT = Path(tempfile.gettempdir()) / "disttest-leases"
"""Directory used if creating the default one would need root."""

_GATE = "gate"


def usual_directory() -> Path:
    """Return the directory that the runs of a host share by default."""
    top = DEFAULT_DIRECTORY.parent
    if DEFAULT_DIRECTORY.is_dir() or os.access(top if top.is_dir() else top.parent, os.W_OK):
        return DEFAULT_DIRECTORY
    return _WITHOUT_ROOT


def boot_clock() -> float:
    """Return the seconds since the host booted, which are the same in all its processes and containers."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Holder(Frozen):
    """The holder of a lock, as it describes itself."""

    pid: int = 0
    """Pid in the holder's own pid namespace."""
    who: str = ""
    """The run and its command."""
    since_s: float = 0.0
    """Start of the lease on :func:`boot_clock`."""


# flock, not a file that exists or not, which SIGKILL would leave behind, and not a daemon.
# docs/decisions/0027-leases-are-flocks.md
class Lock:
    """A lock that this process holds."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self._descriptor = descriptor

    def sign(self, holder: Holder) -> None:
        """Write the holder into the lock file."""
        with contextlib.suppress(
            OSError
        ):  # another user's file, or a full disk: the holder has no name then, and the lock holds
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, msgspec.json.encode(holder), 0)

    def release(self) -> None:
        """Release the lock, including for processes that inherited it."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Release the lock in this process: it becomes free when the last process that inherited it has ended."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LockDirectory:
    """Named locks in a directory."""

    def __init__(self, path: Path) -> None:
        """Open the directory; create it for all users if it is missing.

        Raises:
            UsageError: it cannot be created or written to, or is no lease directory.
        """
        self.path = path
        self._folder = SharedFolder(path)
        if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
            raise refusal(path, os.strerror(errno.EACCES))
        try:
            os.close(self._folder.open(_GATE))
        except OSError as error:
            raise refusal(path, f"{_GATE}: {error.strerror}") from error

    def try_lock(self, name: str) -> Lock | None:
        """Take the lock; return None if another process holds it or this user may not open its file."""
        try:
            descriptor = self._folder.open(name)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return Lock(name, descriptor)

    def is_lock(self, name: str) -> bool:
        """Return whether there is a file that can be locked."""
        try:
            os.close(self._folder.open(name))
        except OSError:
            return False
        return True

    def read(self, name: str) -> Holder:
        """Read the holder of a lock; an empty one if nothing is written yet."""
        try:
            holder = msgspec.json.decode(self._folder.read(name), type=Holder)
        except (OSError, *UNREADABLE):
            return Holder()
        return msgspec.structs.replace(holder, who=plain_text(holder.who))

    def remove(self, name: str) -> None:
        """Remove the file of a lock if this user may."""
        self._folder.remove(name)

    def names(self, suffix: str) -> list[str]:
        """Return the names of locks with this suffix, sorted, whether held or not."""
        return self._folder.names(suffix)

    @contextmanager
    def gate(
        self, *, timeout_s: float, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> Iterator[bool]:
        """Hold the lock that orders all other operations in this directory; yield False if it cannot be taken in time.

        It is held for microseconds, unless its holder is stopped or the machine is very busy.
        """
        deadline_s = clock() + timeout_s
        lock = self.try_lock(_GATE)
        while lock is None and clock() < deadline_s:
            sleep(0.005)
            lock = self.try_lock(_GATE)
        if lock is not None:
            # A run that waits in vain for the gate can then name its holder, which is probably stopped.
            lock.sign(Holder(pid=os.getpid(), since_s=boot_clock()))
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()


# Twelve digits, so that names sort as their numbers do.
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
        # A ticket whose lock is free belongs to a run that has ended.
        if lock is not None:
            leave_queue(directory, lock)
        # A file that this user cannot even open, such as a directory of that name, is no ticket.
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
