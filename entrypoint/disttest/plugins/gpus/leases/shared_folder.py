"""A directory that runs of several users share. Files in it are opened by name, never through a link.

Any user who can write there can misuse it. Files of other users therefore count as the worst that they can be: a
lock that is held, or a note that keeps a GPU out of use. No file in it leads to a file elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from disttest.errors import UsageError
from disttest.safe_open import create_file, open_regular

_MARK = ".writable"
"""Marker file: a directory without it holds other things than leases."""
_SHARED_DIRECTORY = 0o1777
"""Runners may run as different users; the sticky bit protects their files from each other."""
_SHARED_FILE = 0o666
_MOST_READ = 1 << 16
_LONGEST_TEXT = 300


class SharedFolder:
    """Files directly in a directory that users share. It holds a descriptor while it lives."""

    def __init__(self, path: Path) -> None:
        """Open the directory; create it for all users if it is missing. An existing one is not changed.

        Raises:
            UsageError: it cannot be created or read, holds other things, or other users could replace this user's
                files in it.
        """
        self._fd = -1
        self.path = path
        try:
            if not path.exists():
                _make(path)
            # From here on by descriptor: another user could replace the directory between two uses of its
            # path.
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            wrong = _wrong_with(os.fstat(self._fd)) or self._foreign()
        except OSError as error:
            reason = "it is a symbolic link" if path.is_symlink() else error.strerror
            raise refusal(path, reason) from error
        if wrong:
            raise refusal(path, wrong)

    def _foreign(self) -> str:
        """Return the name of a foreign file in the directory; an empty directory becomes a lease directory."""
        names = os.listdir(self._fd)  # noqa: PTH208 - by descriptor
        if not names:
            os.close(self.open(_MARK))
        elif _MARK not in names:
            return f"it contains files that are not leases ({min(names)!r})"
        return ""

    def open(self, name: str) -> int:
        """Open a file for reading and writing; create it for all users if it is missing.

        It is opened without O_CREAT first: in a sticky directory the kernel forbids O_CREAT for a file of another
        user (fs.protected_regular).

        Raises:
            OSError: it cannot be opened, or is not a regular file with a single name.
        """
        with contextlib.suppress(FileNotFoundError):
            return self._open(name)
        try:
            fd = create_file(name, mode=_SHARED_FILE, at=self._fd)
        except FileExistsError:
            return self._open(name)
        # The mode given at the creation is reduced by the umask.
        os.fchmod(fd, _SHARED_FILE)
        return fd

    def _open(self, name: str) -> int:
        try:
            # `open_regular` refuses links, pipes and devices that another user has put there.
            fd = open_regular(name, os.O_RDWR, at=self._fd)
        except PermissionError:
            # Its maker died before the file was made accessible to all users. Read access is sufficient for a lock.
            fd = open_regular(name, at=self._fd)
        # Another user could link a file of this user into the directory, which would then be written to.
        if os.fstat(fd).st_nlink > 1:
            os.close(fd)
            raise OSError(errno.EMLINK, "it is a link to a file elsewhere", name)
        return fd

    def read(self, name: str) -> bytes:
        """Read the first 64 KiB of a file.

        Raises:
            OSError: there is none, or it is not a regular file.
        """
        fd = open_regular(name, at=self._fd)
        try:
            return os.read(fd, _MOST_READ)
        finally:
            os.close(fd)

    def replace(self, name: str, data: bytes) -> None:
        """Write a file and rename it, so that readers see all of it or nothing.

        Raises:
            OSError: it cannot be written; PermissionError if the file belongs to another user.
        """
        # A random name, because another user could create a predictable one first.
        fresh = f".{secrets.token_hex(8)}.new"
        fd = create_file(fresh, mode=0o644, at=self._fd)
        try:
            os.fchmod(fd, 0o644)
            os.write(fd, data)
            os.rename(fresh, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError:
            self.remove(fresh)
            raise
        finally:
            os.close(fd)

    def remove(self, name: str) -> bool:
        """Remove a file; return False if it belongs to another user."""
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def names(self, suffix: str) -> list[str]:
        """Return the sorted names of files with this suffix."""
        names = os.listdir(self._fd)  # noqa: PTH208 - by descriptor
        return sorted(name for name in names if name.endswith(suffix))

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def plain_text(text: str) -> str:
    """Return another user's text in a safe form: one line of limited length, without control characters."""
    return "".join(character if character.isprintable() else "?" for character in text[:_LONGEST_TEXT])


def refusal(path: Path, reason: str | None) -> UsageError:
    """Return the error for a lease directory that cannot be used."""
    return UsageError(
        f"the lease directory {path} cannot be used: {reason}. "
        "Set DISTTEST_LEASE_DIR to a directory for leases only that all runners of this host can write to (chmod 1777)."
    )


def _make(path: Path) -> None:
    """Create the directory under a temporary name and rename it, so that no process sees it incomplete."""
    # A directory that exists keeps its mode: ``--lease-dir $HOME`` must not open a home directory to all users.
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(parents=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        (fresh / _MARK).touch()
        (fresh / _MARK).chmod(_SHARED_FILE)
        fresh.chmod(_SHARED_DIRECTORY)
        fresh.rename(path)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not path.is_dir():  # otherwise another run was faster
            raise


def _wrong_with(found: os.stat_result) -> str:
    """Return why locks in a directory would not be reliable; empty if they are."""
    if found.st_mode & stat.S_ISVTX:
        return ""
    if found.st_mode & stat.S_IWOTH:
        return "every user may replace other users' files in it (its mode lacks the sticky bit)"
    if found.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {found.st_uid} alone (its mode lacks the sticky bit)"
    return ""
