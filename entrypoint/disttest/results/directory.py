"""The results directory: one run holds it at a time, and results of an earlier run are kept apart.

A run holds its directory by a lock (flock) on the directory itself. The lock leaves no file behind, follows a rename,
and ends with the last process that holds it: the command or its pytest process. Forks of these (worlds, ranks,
processes of tests) release it immediately, so no process that a test leaves behind can prolong it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from disttest.descriptors import move_high
from disttest.errors import JournalError, UsageError
from disttest.host.proc import is_alive
from disttest.limits import KEPT_LOGS_S, KILL_S
from disttest.model import Frozen
from disttest.results.earlier_runs import IGNORED, PROBE, earlier_results, keep_earlier_run, left_in, put_back
from disttest.results.journal import FILE_NAME, Journal, end_for_want_of_room

DEFAULT = Path("results")
# Maximum number of directories of one name: ``results-2`` and so on.
_MOST = 1000


class DirectoryInUse(UsageError):
    """Another run holds the directory.

    Args:
        path: the directory.
        pid: process that took it; None if it is not visible from here.
    """

    def __init__(self, path: Path, pid: int | None) -> None:
        self.by = f"in use by another run{f' (pid {pid})' if pid else ''}"
        super().__init__(
            f"results directory {path} is {self.by}: wait until it has ended, or choose another with --results"
        )


class Home(Frozen):
    """Location of the results directory, for processes that write into it."""

    path: str
    device: int = 0
    inode: int = 0
    """Inode of the directory when it was claimed; 0 if no other run can use the path."""
    refuge: str = ""
    """Directory to use if the original one is deleted or belongs to another run."""

    def now(self) -> Path:
        """Return the directory to write to now."""
        # After `rm -rf results; disttest run` in another shell, the path belongs to that run, and logs of
        # both would mix.
        return Path(self.path if not self.inode or self.is_in_place() else self.refuge)

    def is_in_place(self) -> bool:
        """Whether the path still refers to this run's directory."""
        try:
            found = Path(self.path).stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (self.device, self.inode)


class Workplace(NamedTuple):
    """Directories of a run."""

    home: Home
    """The results directory."""
    scratch: Path

    @property
    def results(self) -> Path:
        """Current path of the results directory."""
        return self.home.now()


class ResultsDirectory:
    """A results directory that this run holds.

    Args:
        path: absolute path.
        fd: open descriptor of the directory, with the lock.
        run_pid: process id by which the run is known.
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
        # A high number, because tests and programs close or redirect the low ones.
        self._fd = move_high(fd)
        # Device and inode identify the directory after a rename.
        found = os.fstat(self._fd)
        # The name follows from the pid of the run, so that processes of the run know it without a message.
        refuge = path.with_name(f"{path.name}-{self._run_pid}")
        self.home = Home(path=str(path), device=found.st_dev, inode=found.st_ino, refuge=str(refuge))

    @property
    def path(self) -> Path:
        """Its path, which :meth:`restore` may change."""
        return Path(self.home.path)

    def fileno(self) -> int:
        """Descriptor for a process that will hold the directory as well; see :func:`adopt`."""
        return self._fd

    def restore(self, journal: Journal) -> str:
        """Restore a deleted directory and journal, without touching another run; return a note if that was needed.

        The directory gets its name back, unless the name is in use again; then the refuge is used.
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
        return f"{REMOVED}, and {before} no longer belongs to this run: journal and reports are in {self.path}, {lost}"

    def _move(self) -> None:
        path, refuge = self.path, Path(self.home.refuge)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
            # Without `exist_ok`: a directory that exists belongs to another run by now.
            fd = _locked(path)
        # Another run may also lock the new directory between these two calls.
        except (FileExistsError, DirectoryInUse):
            refuge.mkdir(exist_ok=True)
            self._hold(refuge, _locked(refuge))
            return
        self._hold(path, fd)
        # Ranks have written into the refuge since the directory was deleted.
        if refuge.is_dir():
            for child in refuge.iterdir():
                child.rename(path / child.name)
            refuge.rmdir()

    def put_back_earlier(self) -> None:
        """Remove the files of this run, and put back the results that the claim has moved away, if any."""
        if self.home.is_in_place():
            with contextlib.suppress(OSError):
                put_back(self.path, self.earlier)

    def release(self) -> None:
        """Release the directory for other runs."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                # Unlock explicitly: a fork that shares the open file would keep the lock otherwise.
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._let_go()

    def _let_go(self) -> None:
        """Close the descriptor only: unlocking would unlock it for the parent process as well."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


REMOVED = "the results directory was removed while the run wrote into it"


def claim(path: Path) -> ResultsDirectory:
    """Prepare the directory for a new run, which holds it from now on.

    The results of an earlier run are renamed to ``<name>-<time of its journal>`` in the same folder. If that fails (a
    mounted volume), its content moves to ``earlier/<time>`` inside.

    Raises:
        DirectoryInUse: another run holds it.
        UsageError: it cannot be created or written, or contains files that no disttest run has left.
        JournalError: its disk is full.
    """
    path = path.absolute()
    # A symbolic link to another disk is kept.
    real = path.resolve()
    earlier = None
    try:
        for _ in range(_MOST):
            real.parent.mkdir(parents=True, exist_ok=True)
            # If it is not a directory, opening it fails with a message.
            with contextlib.suppress(FileExistsError):
                real.mkdir()
            # Another process renamed it in the meantime.
            with contextlib.suppress(FileNotFoundError):
                fd = _locked(real)
                try:
                    # Checked under the lock, and again after the move: another run may have renamed the
                    # directory before this lock.
                    if _is_at(fd, real) and left_in(real):
                        earlier = keep_earlier_run(real)
                    if _is_at(fd, real):
                        _make_ready(real)
                        # A lock by flock belongs to the open file, so the duplicate keeps it when `fd` is
                        # closed.
                        return ResultsDirectory(path, os.dup(fd), run_pid=os.getpid(), earlier=earlier)
                finally:
                    os.close(fd)
    except OSError as error:
        # A full disk is a fault of the machine, whenever the run meets it.
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise JournalError(end_for_want_of_room(path, error)) from error
        raise UsageError(
            f"results directory {path} cannot be used: {error.strerror}; choose another with --results"
        ) from error
    raise UsageError(
        f"results directory {path} cannot be used: another process keeps renaming it; choose another with --results"
    )


def claim_default(say: Callable[[str], None]) -> ResultsDirectory:
    """Claim ``results`` for a run without a directory; ``results-2`` and so on if other runs are active.

    Waiting for the other run would hang scripts. A directory that the user names is refused instead, because the
    results are expected there.

    Args:
        say: receives one line about the location if it is not ``results``.

    Raises:
        UsageError: as in :func:`claim`.
    """
    try:
        return claim(DEFAULT)
    except DirectoryInUse as error:
        by = error.by
    for number in range(2, _MOST):
        # In use as well, or full of other files: the next number may be free.
        with contextlib.suppress(UsageError):
            directory = claim(DEFAULT.with_name(f"{DEFAULT.name}-{number}"))
            say(f"{DEFAULT} is {by}: this run writes into {directory.path.name}")
            return directory
    raise UsageError(f"{DEFAULT} is {by}, and no other name is free: choose a directory with --results")


def adopt(path: Path, fd: int, *, run_pid: int) -> ResultsDirectory:
    """Hold a directory that the command has claimed, through an inherited descriptor."""
    return ResultsDirectory(path, fd, run_pid=run_pid)


@contextlib.contextmanager
def no_run_writes(path: Path) -> Iterator[None]:
    """Keep runs from claiming the directory while the context is open.

    Raises:
        DirectoryInUse: a run holds it.
    """
    # Shared, so that several reports can be written at the same time. Only runs are excluded.
    fd = _locked(path, shared=True)
    try:
        yield
    finally:
        os.close(fd)


def short_path(path: Path) -> str:
    """Return the path as a user would type it here: relative below the working directory."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _make_ready(path: Path) -> None:
    """Check that there is room for a journal, and keep the directory out of any repository."""
    # A quota or a full disk is found here and not when the first event is written.
    probe = path / PROBE
    try:
        # An empty file needs no block, so a full disk or quota would not be noticed.
        probe.write_bytes(b"x" * 4096)
    finally:
        probe.unlink(missing_ok=True)
    with contextlib.suppress(FileExistsError), (path / IGNORED).open("x") as ignored:
        ignored.write("*\n")


def _is_at(fd: int, path: Path) -> bool:
    """Whether a path refers to the open directory: it may be renamed between two calls."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _locked(path: Path, *, shared: bool = False) -> int:
    """Open and lock the directory.

    After a command is killed, its last process dies a moment later; wait for that moment.

    Raises:
        DirectoryInUse: another run holds it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    limit_s = time.monotonic() + KILL_S
    try:
        while not _try_lock(fd, shared=shared):
            pid = _holder(fd)
            # A holder in another PID namespace or on another machine has no pid here, so its end cannot be
            # awaited.
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
    # On a file system without such locks, runs cannot see each other.
    # For example ENOLCK on NFS without a lock daemon.
    except OSError:
        return True
    return True


def _holder(fd: int) -> int | None:
    """Return the process that took the lock, from /proc/locks; None if it is not visible from here."""
    found = os.fstat(fd)
    # The format of /proc/locks.
    # A line of it: "1: FLOCK  ADVISORY  WRITE 4711 08:02:131073 0 EOF".
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5] == file:
                return int(words[4]) if int(words[4]) > 0 else None
    return None


def remove_old(path: Path, keep: int, say: Callable[[str], None]) -> None:
    """Delete all but the newest ``keep`` earlier results of a results directory.

    Args:
        path: directory of a run, which does not count.
        keep: number of earlier results to keep.
        say: receives one line about results that cannot be deleted; the next run tries again.
    """
    # A claim keeps earlier results next to the target of a link.
    for folder in earlier_results(path.resolve())[keep:]:
        try:
            with no_run_writes(folder):
                shutil.rmtree(folder)
        except (DirectoryInUse, FileNotFoundError):
            # Reports are being written into it, or another run deletes it.
            continue
        except OSError as error:
            say(f"{short_path(folder)} cannot be deleted (--keep-results {keep}): {error.strerror}")


# Not below pytest's temporary folders, which the third following run deletes, or the next one with ``--basetemp``:
# failures refer to these logs.
_LOGS = "disttest-logs-"
# A file in every such folder: the name alone could be another program's.
_MADE_BY_US = ".made-by-disttest"


def make_log_folder() -> Path:
    """Create the log folder of a plain pytest run without a results directory, and remove those of runs long past."""
    _remove_old_logs(Path(tempfile.gettempdir()), time.time())  # noqa: TID251 - compared with the times of files
    folder = Path(tempfile.mkdtemp(prefix=_LOGS))
    (folder / _MADE_BY_US).touch()
    return folder


def drop_log_folder(folder: Path) -> None:
    """Remove the folder of a run that reported nothing from it."""
    # A file that stays is removed by a later run, once it is old enough.
    shutil.rmtree(folder, ignore_errors=True)


def _remove_old_logs(parent: Path, now_s: float) -> None:
    for folder in parent.glob(f"{_LOGS}*"):
        try:
            # lstat: the owner of a link's target proves nothing about the link.
            found = [folder.lstat(), (folder / _MADE_BY_US).lstat()]
        except OSError:
            continue
        # Folder and mark must belong to this user: other users can create the same names in /tmp.
        if {os.getuid()} == {each.st_uid for each in found} and found[0].st_mtime < now_s - KEPT_LOGS_S:
            drop_log_folder(folder)
