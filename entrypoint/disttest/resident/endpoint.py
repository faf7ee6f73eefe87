"""Where resident parents are found: a folder of the user's own, and in it a socket for each folder of tests.

What a process inherits and cannot give to a fork of another one (user, limits, cgroup, namespaces, processors) is part of
the socket's name: a command under other circumstances has a parent of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import signal
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from disttest.errors import UsageError
from disttest.host.proc import ProcessIdentity, is_running
from disttest.model import Frozen

_INHERITED = frozenset(
    {
        *("Umask", "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs"),
        *("Seccomp", "Cpus_allowed", "Mems_allowed", "SigBlk"),
    }
)
"""Lines of ``/proc/self/status`` that a child has from its parent."""
_SET_BY_THE_COMMAND = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_PRIVATE = 0o700


class ParentEndpoint(Frozen):
    """The files of one parent."""

    folder: Path
    """Private to the user."""
    name: str

    @property
    def socket(self) -> Path:
        """It listens there."""
        return self.folder / f"{self.name}.socket"

    @property
    def lock(self) -> Path:
        """Held by who looks for a parent or removes one; says which process it is."""
        return self.folder / f"{self.name}.lock"

    @property
    def log(self) -> Path:
        """What it prints, if it fails."""
        return self.folder / f"{self.name}.log"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, nobody else starts a parent here, or removes one.

        Raises:
            UsageError: see :func:`private_folder`.
        """
        fd = self._lock()
        try:
            yield
        finally:
            os.close(fd)

    def _lock(self) -> int:
        while True:
            make_private(self.folder)
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile, as it was empty
                fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                fcntl.flock(fd, fcntl.LOCK_EX)
                if _is_file(fd, self.lock):
                    return fd
                os.close(fd)  # removed while we waited for it

    def enter(self, process: ProcessIdentity) -> None:
        """Write down which process is the parent; the lock is held."""
        self.lock.write_bytes(msgspec.json.encode(process))

    def parent(self) -> ProcessIdentity | None:
        """The parent that runs; None where there is none."""
        try:
            process = msgspec.json.decode(self.lock.read_bytes(), type=ProcessIdentity)
        except (OSError, msgspec.DecodeError):
            return None
        return process if is_running(process.pid, process.started) else None

    def remove(self) -> None:
        """Leave nothing; the lock is held."""
        for path in (self.socket, self.log, self.lock):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def private_folder(environ: Mapping[str, str]) -> Path:
    """The folder for the sockets of this user."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "disttest"
    return Path(f"/tmp/disttest-{os.getuid()}")  # noqa: S108 - see below


def make_private(folder: Path) -> None:
    """Make a folder that is this user's only, unless it is there.

    Raises:
        UsageError: others can write there, or it is another user's.
    """
    try:
        folder.mkdir(mode=_PRIVATE, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made for resident parents: {error.strerror}") from None
    try:
        facts = folder.lstat()
    except FileNotFoundError:  # removed meanwhile, as it was empty
        return
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise UsageError(
            f"{folder} is for the resident parents of user {os.getuid()} only, but is not a folder of that user with mode "
            "0700: remove it, or set XDG_RUNTIME_DIR"
        )


def endpoint_of(tests: Path, environ: Mapping[str, str]) -> ParentEndpoint:
    """The endpoint of the parent for the tests of a folder, for commands like this process.

    Raises:
        UsageError: see :func:`private_folder`.
    """
    told = "\n".join([str(tests), *_circumstances()])
    return ParentEndpoint(folder=private_folder(environ), name=hashlib.sha256(told.encode()).hexdigest()[:16])


def endpoints(environ: Mapping[str, str]) -> list[ParentEndpoint]:
    """All endpoints at which this user has, or had, a parent.

    Raises:
        UsageError: see :func:`private_folder`.
    """
    folder = private_folder(environ)
    if folder.exists():
        make_private(folder)
    return [ParentEndpoint(folder=folder, name=path.stem) for path in sorted(folder.glob("*.lock"))]


def _circumstances() -> Iterator[str]:
    """What a child of this process inherits and a fork of another one would not have."""
    own = Path("/proc/self")
    for line in (own / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in _INHERITED:
            yield line
        elif name == "SigIgn":
            yield f"ignored {int(value, 16) & ~sum(1 << (number - 1) for number in _SET_BY_THE_COMMAND):x}"
    for name in ("limits", "cgroup", "oom_score_adj"):
        with contextlib.suppress(OSError):
            yield (own / name).read_text()
    yield from (f"{link.name} {link.readlink()}" for link in sorted((own / "ns").iterdir()))
    yield f"nice {os.nice(0)}, scheduler {os.sched_getscheduler(0)}"
    root = Path("/").stat()
    yield f"root {root.st_dev} {root.st_ino}"


def _is_file(fd: int, path: Path) -> bool:
    """Whether a path still leads to what was opened."""
    try:
        there, ours = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
