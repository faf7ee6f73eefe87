"""Locks that runners on one host share: files in a directory, locked with flock(2).

The kernel frees a lock when the last process that inherited it ends, however it ends; so a rank that can
not be killed keeps its GPU from being handed on. The files themselves stay. flock works between containers
that mount the same directory of the host, and not on network file systems.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from disttest.errors import UsageError
from disttest.model import Frozen

DEFAULT_DIRECTORY = Path("/run/lock/disttest")

_WITHOUT_ROOT = Path(tempfile.gettempdir()) / "disttest-leases"
"""Where only root could make the other one."""

_SHARED_DIRECTORY = 0o1777
"""Runners may run as different users."""
_SHARED_FILE = 0o666


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
            UsageError: it can not be made or written to.
        """
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            if path.stat().st_uid == os.geteuid() and path.stat().st_mode & 0o7777 != _SHARED_DIRECTORY:
                path.chmod(_SHARED_DIRECTORY)
            os.close(_open(path / ".writable"))
        except OSError as error:
            raise UsageError(
                f"the lease directory {path} can not be used: {error.strerror}. "
                "Give one that all runners of this host share and may write to, with --lease-dir."
            ) from error

    def try_lock(self, name: str) -> Lock | None:
        """The lock, or None while another holds it."""
        descriptor = _open(self.path / name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return Lock(name, descriptor)

    def read(self, name: str) -> Holder:
        """What the holder wrote; an empty one where it wrote nothing (yet)."""
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=Holder)
        except (OSError, msgspec.DecodeError):
            return Holder()

    @contextmanager
    def gate(
        self, *, timeout_s: float, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> Iterator[bool]:
        """Hold the lock that orders everything else in this directory; False where it is not to be had.

        It is held for microseconds, unless its holder is stopped or the machine is very busy.
        """
        deadline_s = clock() + timeout_s
        lock = self.try_lock("gate")
        while lock is None and clock() < deadline_s:
            sleep(0.005)
            lock = self.try_lock("gate")
        if lock is not None:
            lock.sign(Holder(pid=os.getpid(), since_s=boot_clock()))
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()


def _open(path: Path) -> int:
    """Open a file of the directory for reading and writing; make it if it is not there.

    Without O_CREAT first: in a sticky directory the kernel forbids that for another user's file
    (fs.protected_regular).
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, _SHARED_FILE)
    except FileExistsError:
        return os.open(path, flags)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != _SHARED_FILE:
        os.fchmod(descriptor, _SHARED_FILE)
    return descriptor
