"""Files of resident parents: a private folder of the user, with a socket for each folder of tests."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from disttest.errors import UsageError
from disttest.extras.resident.place import folder_for, is_private, name_for
from disttest.host.proc import ProcessIdentity, is_running
from disttest.model import UNREADABLE, Frozen

_PRIVATE = 0o700


class ParentEndpoint(Frozen):
    """Files of one parent."""

    folder: Path
    """Folder with access for the user only."""
    name: str

    @property
    def socket(self) -> Path:
        """Socket on which the parent listens."""
        return self.folder / f"{self.name}.socket"

    @property
    def lock(self) -> Path:
        """File locked while a parent is looked for or removed; it contains the identity of the process."""
        return self.folder / f"{self.name}.lock"

    @property
    def log(self) -> Path:
        """Output of the parent, kept if it fails."""
        return self.folder / f"{self.name}.log"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Within the context, no other process starts or removes a parent here.

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
            with contextlib.suppress(FileNotFoundError):  # another process removed the empty folder
                fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                fcntl.flock(fd, fcntl.LOCK_EX)
                if _is_file(fd, self.lock):
                    return fd
                os.close(fd)  # removed during the wait

    def enter(self, process: ProcessIdentity) -> None:
        """Record which process is the parent; the lock is held."""
        self.lock.write_bytes(msgspec.json.encode(process))

    def parent(self) -> ProcessIdentity | None:
        """Return the running parent, if any."""
        try:
            process = msgspec.json.decode(self.lock.read_bytes(), type=ProcessIdentity)
        except (OSError, *UNREADABLE):
            return None
        return process if is_running(process.pid, process.started) else None

    def remove(self) -> None:
        """Remove all files; the lock is held."""
        # The lock comes last: once its name is gone, another command may start a parent with these names.
        for path in (self.socket, self.log, self.lock):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def private_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder for the sockets of this user."""
    return Path(folder_for(environ))


def make_private(folder: Path) -> None:
    """Make a folder with access for this user only, unless it exists.

    Raises:
        UsageError: other users can write to it, or own it.
        OSError: it cannot be made.
    """
    folder.mkdir(mode=_PRIVATE, exist_ok=True)
    try:
        private = is_private(str(folder))
    except FileNotFoundError:  # another process removed the empty folder
        return
    if not private:
        raise UsageError(
            f"{folder} is not a folder of user {os.getuid()} with mode 0700; remove it, or set XDG_RUNTIME_DIR"
        )


def endpoint_of(tests: Path, environ: Mapping[str, str]) -> ParentEndpoint:
    """Return the endpoint for the tests of a folder, and for commands with the circumstances of this process.

    Raises:
        UsageError: see :func:`private_folder`.
    """
    return ParentEndpoint(folder=private_folder(environ), name=name_for(str(tests)))


def endpoints(environ: Mapping[str, str]) -> list[ParentEndpoint]:
    """List all endpoints at which this user has, or had, a parent.

    Raises:
        UsageError: see :func:`private_folder`.
    """
    folder = private_folder(environ)
    if folder.exists():
        make_private(folder)
    return [ParentEndpoint(folder=folder, name=path.stem) for path in sorted(folder.glob("*.lock"))]


def _is_file(fd: int, path: Path) -> bool:
    """Whether a path still leads to the open file."""
    try:
        there, ours = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
