"""The results directory: one run holds it at a time; what an earlier run left is kept aside, never mixed.

A run holds its directory by a lock (flock) on the directory itself, which leaves no file behind, follows it when it is
renamed, and ends with the last process that keeps it: the command and its pytest process. Forked copies of these
(worlds, ranks, whatever tests start) let go of it at once, so nothing that a test leaves running can prolong it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from disttest.descriptors import high_copy
from disttest.errors import UsageError
from disttest.host.proc import is_alive
from disttest.limits import KILL_S
from disttest.model import Frozen
from disttest.results.earlier_runs import IGNORED, keep_earlier_run, left_in, put_back
from disttest.results.journal import FILE_NAME, Journal

DEFAULT = Path("results")
# Directories of one name, ``results-2`` and so on.
_MOST = 1000


class DirectoryInUse(UsageError):
    """Another run holds the directory.

    Args:
        path: the directory.
        pid: the process that took it; None where it cannot be seen from here.
    """

    def __init__(self, path: Path, pid: int | None) -> None:
        self.by = f"in use by another run{f' (pid {pid})' if pid else ''}"
        super().__init__(
            f"results directory {path} is {self.by}: wait until it has ended, or choose another with --results"
        )


class Home(Frozen):
    """What processes of a run need to know to write into its results directory and into no other."""

    path: str
    device: int = 0
    inode: int = 0
    """Of the directory when it was claimed; 0: nobody else can have an interest in that path."""
    refuge: str = ""
    """Where to write from the moment on when the directory is gone, or is another run's."""

    def now(self) -> Path:
        """Where to write now."""
        return Path(self.path if not self.inode or self.is_in_place() else self.refuge)

    def is_in_place(self) -> bool:
        """Whether the path still leads to the directory of this run."""
        try:
            found = Path(self.path).stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (self.device, self.inode)


class ResultsDirectory:
    """A results directory that this run holds.

    Args:
        path: absolute.
        fd: open on the directory, with the lock.
        run_pid: the process that the run is known by.
        earlier: the folder to which the claim moved the results of an earlier run; None without any.
    """

    def __init__(self, path: Path, fd: int, *, run_pid: int, earlier: Path | None = None) -> None:
        self._run_pid = run_pid
        self.earlier = earlier
        self._fd = -1
        self._hold(path, fd)
        os.register_at_fork(after_in_child=self._let_go)

    def _hold(self, path: Path, fd: int) -> None:
        self._let_go()
        self._fd = high_copy(fd)
        os.close(fd)
        found = os.fstat(self._fd)
        refuge = path.with_name(f"{path.name}-{self._run_pid}")
        self.home = Home(path=str(path), device=found.st_dev, inode=found.st_ino, refuge=str(refuge))

    @property
    def path(self) -> Path:
        """Where it lies; another path after :meth:`restore` has had to move."""
        return Path(self.home.path)

    def fileno(self) -> int:
        """For a process that is to hold the directory as well; see :func:`adopt`."""
        return self._fd

    def restore(self, journal: Journal) -> str:
        """Put back what somebody has removed meanwhile, and nothing of another run; returns a note if that was needed.

        The directory comes back under its name, unless there is something else by now: then under its refuge.
        """
        if self.home.is_in_place() and journal.is_in_place():
            return ""
        before = self.path
        try:
            if not self.home.is_in_place():
                self._move()
            journal.move_to(self.path / FILE_NAME)
        except OSError as error:
            return f"the results directory {before} was removed, and cannot be restored: {error.strerror}"
        lost = "the logs of the ranks up to then are lost"
        if self.path == before:
            return f"{REMOVED}: journal and reports were restored, {lost}"
        return f"{REMOVED}, and {before} is not this run's any more: journal and reports are in {self.path}, {lost}"

    def _move(self) -> None:
        path, refuge = self.path, Path(self.home.refuge)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
            fd = _locked(path)
        except (FileExistsError, DirectoryInUse):
            refuge.mkdir(exist_ok=True)
            self._hold(refuge, _locked(refuge))
            return
        self._hold(path, fd)
        if refuge.is_dir():
            for child in refuge.iterdir():
                child.rename(path / child.name)
            refuge.rmdir()

    def put_back_earlier(self) -> None:
        """Replace the files of this run by the results that the claim has moved away; does nothing without any."""
        if self.earlier is not None and self.home.is_in_place():
            with contextlib.suppress(OSError):
                put_back(self.path, self.earlier)

    def release(self) -> None:
        """Let others have it."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._let_go()

    def _let_go(self) -> None:
        """Close the descriptor only: to unlock would unlock it for the process that we were forked from."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


REMOVED = "the results directory was removed while the run wrote into it"


def claim(path: Path) -> ResultsDirectory:
    """Make the directory ready for a new run, which holds it from now on.

    An earlier run is renamed to ``<name>-<time of its journal>`` beside it; where that cannot be done (a
    mounted volume), its content moves to ``earlier/<time>`` inside.

    Raises:
        DirectoryInUse: another run holds it.
        UsageError: it cannot be made or written, or holds something that no run of ours has left.
    """
    path = path.absolute()
    real = path.resolve()  # a link to another disk stays one
    earlier = None
    try:
        for _ in range(_MOST):
            real.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # what it is, opening it will say
                real.mkdir()
            with contextlib.suppress(FileNotFoundError):  # somebody has renamed it meanwhile
                fd = _locked(real)
                try:
                    if _is_at(fd, real) and left_in(real):
                        earlier = keep_earlier_run(real)
                    if _is_at(fd, real):
                        _make_ready(real)
                        return ResultsDirectory(path, os.dup(fd), run_pid=os.getpid(), earlier=earlier)
                finally:
                    os.close(fd)
    except OSError as error:
        raise UsageError(
            f"results directory {path} cannot be used: {error.strerror}; --results names another"
        ) from error
    raise UsageError(f"results directory {path} cannot be used: it is renamed all the time")


def claim_default(say: Callable[[str], None]) -> ResultsDirectory:
    """Claim ``results`` for a run that was given no directory; ``results-2`` and so on beside other runs.

    Args:
        say: told in one line where the results go, if not to ``results``.

    Raises:
        UsageError: as :func:`claim`.
    """
    try:
        return claim(DEFAULT)
    except DirectoryInUse as error:
        by = error.by
    for number in range(2, _MOST):
        with contextlib.suppress(UsageError):
            directory = claim(DEFAULT.with_name(f"{DEFAULT.name}-{number}"))
            say(f"{DEFAULT} is {by}: this run writes into {directory.path.name}")
            return directory
    raise UsageError(f"{DEFAULT} is {by}, and no other name is free: choose a directory with --results")


def adopt(path: Path, fd: int, *, run_pid: int) -> ResultsDirectory:
    """Hold a directory that the command has claimed, by a descriptor that was inherited from it."""
    return ResultsDirectory(path, fd, run_pid=run_pid)


@contextlib.contextmanager
def no_run_writes(path: Path) -> Iterator[None]:
    """While this is open, no run can claim the directory.

    Raises:
        DirectoryInUse: a run holds it.
    """
    fd = _locked(path, shared=True)
    try:
        yield
    finally:
        os.close(fd)


def short_path(path: Path) -> str:
    """The path as a user would type it here: relative if it lies below the working directory."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _make_ready(path: Path) -> None:
    """Check that there is room for a journal, and keep the directory out of any repository."""
    probe = path / ".writable"
    probe.write_bytes(b"x" * 4096)
    probe.unlink()
    with contextlib.suppress(FileExistsError), (path / IGNORED).open("x") as ignored:
        ignored.write("*\n")


def _is_at(fd: int, path: Path) -> bool:
    """Whether a path leads to what a descriptor is open on: it may have been renamed between two calls."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _locked(path: Path, *, shared: bool = False) -> int:
    """A descriptor of the directory, with the lock.

    A command that was killed has its last process die a moment later: that moment is waited for.

    Raises:
        DirectoryInUse: another run holds it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    limit_s = time.monotonic() + KILL_S
    try:
        while not _try_lock(fd, shared=shared):
            pid = _holder(fd)
            if pid is None or is_alive(pid) or time.monotonic() > limit_s:
                raise DirectoryInUse(path, pid)
            time.sleep(0.01)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _try_lock(fd: int, *, shared: bool) -> bool:
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without such locks: there, nobody can be told from anybody
        return True
    return True


def _holder(fd: int) -> int | None:
    """The process that took the lock, as the kernel tells; None where it cannot be seen from here."""
    found = os.fstat(fd)
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5] == file:
                return int(words[4]) if int(words[4]) > 0 else None
    return None
