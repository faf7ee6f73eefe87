"""Locks that runners on one host share: files in a directory, locked with flock(2).

The kernel frees a lock when the last process that inherited it ends, however it ends; so a rank that can
not be killed keeps its GPU from being handed on. The files themselves stay. flock works between containers
that mount the same directory of the host, and not on network file systems.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from disttest.host.shared import SharedFolder, plain_text, refusal
from disttest.model import UNREADABLE, Frozen

DEFAULT_DIRECTORY = Path("/run/lock/disttest")

_WITHOUT_ROOT = Path(tempfile.gettempdir()) / "disttest-leases"
"""Where only root could make the other one."""

_GATE = "gate"


def usual_directory() -> Path:
    """The directory that the runs of a host share unless they are given one."""
    top = DEFAULT_DIRECTORY.parent
    if DEFAULT_DIRECTORY.is_dir() or os.access(top if top.is_dir() else top.parent, os.W_OK):
        return DEFAULT_DIRECTORY
    return _WITHOUT_ROOT


def boot_clock() -> float:
    """Seconds since the host booted: the same in all its processes and containers."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Holder(Frozen):
    """Who holds a lock, as the holder wrote it down."""

    pid: int = 0
    """In the holder's own pid namespace."""
    who: str = ""
    """The run and its command."""
    since_s: float = 0.0
    """On :func:`boot_clock`."""


class Lock:
    """A lock that this process holds."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self._descriptor = descriptor

    def sign(self, holder: Holder) -> None:
        """Write down who holds it."""
        with contextlib.suppress(
            OSError
        ):  # another user's file, or no room: nobody gets to know, and the lock holds
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, msgspec.json.encode(holder), 0)

    def release(self) -> None:
        """Free the lock, also for processes that inherited it."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Let go of it: it is free when the last process that inherited it has ended."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LockDirectory:
    """Named locks in a directory."""

    def __init__(self, path: Path) -> None:
        """Open the directory; it is made, for all users, if it is not there.

        Raises:
            UsageError: it cannot be made or written to, or is none for leases.
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
        """The lock, or None while another holds it, or keeps this user from its file."""
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
        """Whether there is a file that can be locked."""
        try:
            os.close(self._folder.open(name))
        except OSError:
            return False
        return True

    def read(self, name: str) -> Holder:
        """What the holder wrote; an empty one where it wrote nothing (yet)."""
        try:
            holder = msgspec.json.decode(self._folder.read(name), type=Holder)
        except (OSError, *UNREADABLE):
            return Holder()
        return msgspec.structs.replace(holder, who=plain_text(holder.who))

    def remove(self, name: str) -> None:
        """Remove a lock's file, if it is ours to remove."""
        self._folder.remove(name)

    def names(self, suffix: str) -> list[str]:
        """Locks whose names end so, in order, held or not."""
        return self._folder.names(suffix)

    @contextmanager
    def gate(
        self, *, timeout_s: float, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> Iterator[bool]:
        """Hold the lock that orders everything else in this directory; False where it is not to be had.

        It is held for microseconds, unless its holder is stopped or the machine is very busy.
        """
        deadline_s = clock() + timeout_s
        lock = self.try_lock(_GATE)
        while lock is None and clock() < deadline_s:
            sleep(0.005)
            lock = self.try_lock(_GATE)
        if lock is not None:
            lock.sign(Holder(pid=os.getpid(), since_s=boot_clock()))
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()
