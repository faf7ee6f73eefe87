"""Where resident parents are found: a folder of the user's own, and in it a socket for each folder of tests."""

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
from disttest.model import Frozen

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
    return Path(folder_for(environ))


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
        private = is_private(str(folder))
    except FileNotFoundError:  # removed meanwhile, as it was empty
        return
    if not private:
        raise UsageError(
            f"{folder} is for the resident parents of user {os.getuid()} only, but is not a folder of that user with mode "
            "0700: remove it, or set XDG_RUNTIME_DIR"
        )


def endpoint_of(tests: Path, environ: Mapping[str, str]) -> ParentEndpoint:
    """The endpoint of the parent for the tests of a folder, for commands like this process.

    Raises:
        UsageError: see :func:`private_folder`.
    """
    return ParentEndpoint(folder=private_folder(environ), name=name_for(str(tests)))


def endpoints(environ: Mapping[str, str]) -> list[ParentEndpoint]:
    """All endpoints at which this user has, or had, a parent.

    Raises:
        UsageError: see :func:`private_folder`.
    """
    folder = private_folder(environ)
    if folder.exists():
        make_private(folder)
    return [ParentEndpoint(folder=folder, name=path.stem) for path in sorted(folder.glob("*.lock"))]


def _is_file(fd: int, path: Path) -> bool:
    """Whether a path still leads to what was opened."""
    try:
        there, ours = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
