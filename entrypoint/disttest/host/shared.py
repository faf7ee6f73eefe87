"""A directory that runs of several users share: files in it are opened by name, never through a link.

Who may write there may do harm there, so all that others have put there is taken for what it can be at worst: a lock that
is held, a note that keeps a GPU out of use. Nothing in it leads to a file elsewhere.
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
"""A directory without it holds other things than leases."""
_SHARED_DIRECTORY = 0o1777
"""Runners may run as different users; the sticky bit keeps them from each other's files."""
_SHARED_FILE = 0o666
_MOST_READ = 1 << 16
_LONGEST_TEXT = 300


class SharedFolder:
    """Files in a directory that users share, and nothing below it. Holds a descriptor while it lives."""

    def __init__(self, path: Path) -> None:
        """Open the directory; it is made, for all users, if it is not there. One that is there stays as it is.

        Raises:
            UsageError: it cannot be made or read, holds other things, or others could replace files of ours in it.
        """
        self._fd = -1
        self.path = path
        try:
            if not path.exists():
                _make(path)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            wrong = _wrong_with(os.fstat(self._fd)) or self._foreign()
        except OSError as error:
            reason = "it is a symbolic link" if path.is_symlink() else error.strerror
            raise refusal(path, reason) from error
        if wrong:
            raise refusal(path, wrong)

    def _foreign(self) -> str:
        """What else the directory holds; an empty one becomes ours."""
        names = os.listdir(self._fd)  # noqa: PTH208 - by descriptor
        if not names:
            os.close(self.open(_MARK))
        elif _MARK not in names:
            return f"it holds files that are no leases ({min(names)!r})"
        return ""

    def open(self, name: str) -> int:
        """A descriptor of a file for reading and writing; the file is made, for all users, if it is not there.

        Without O_CREAT first: in a sticky directory the kernel forbids that for another user's file
        (fs.protected_regular).

        Raises:
            OSError: it cannot be opened, or is not a regular file with this name alone.
        """
        with contextlib.suppress(FileNotFoundError):
            return self._open(name)
        try:
            fd = create_file(name, mode=_SHARED_FILE, at=self._fd)
        except FileExistsError:
            return self._open(name)
        os.fchmod(fd, _SHARED_FILE)
        return fd

    def _open(self, name: str) -> int:
        try:
            fd = open_regular(name, os.O_RDWR, at=self._fd)
        except PermissionError:
            # Its maker died before it was everybody's; a lock needs no more than this.
            fd = open_regular(name, at=self._fd)
        if os.fstat(fd).st_nlink > 1:
            os.close(fd)
            raise OSError(errno.EMLINK, "it is a link to a file elsewhere", name)
        return fd

    def read(self, name: str) -> bytes:
        """The first 64 KiB of a file.

        Raises:
            OSError: there is none, or it is not a regular file.
        """
        fd = open_regular(name, at=self._fd)
        try:
            return os.read(fd, _MOST_READ)
        finally:
            os.close(fd)

    def replace(self, name: str, data: bytes) -> None:
        """Write a file by rename: a reader sees all of it or none.

        Raises:
            OSError: it cannot be written; PermissionError where the file is another user's.
        """
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
        """Remove a file; False where that is not allowed, since it is another user's."""
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def names(self, suffix: str) -> list[str]:
        """Files whose names end so, in order."""
        names = os.listdir(self._fd)  # noqa: PTH208 - by descriptor
        return sorted(name for name in names if name.endswith(suffix))

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def plain_text(text: str) -> str:
    """What another user has written, as it may be shown: one line of bounded length, no control characters."""
    return "".join(character if character.isprintable() else "?" for character in text[:_LONGEST_TEXT])


def refusal(path: Path, reason: str | None) -> UsageError:
    """The error of a lease directory that cannot be used."""
    return UsageError(
        f"the lease directory {path} cannot be used: {reason}. "
        "Give one for leases alone that all runners of this host may write to, with --lease-dir (chmod 1777)."
    )


def _make(path: Path) -> None:
    """Make the directory beside its place and move it there whole, so that nobody sees it half made."""
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
        if not path.is_dir():  # else another run was faster
            raise


def _wrong_with(found: os.stat_result) -> str:
    """Why locks in a directory would not hold; empty when they do."""
    if found.st_mode & stat.S_ISVTX:
        return ""
    if found.st_mode & stat.S_IWOTH:
        return "everybody may replace the files of others in it (its mode lacks the sticky bit)"
    if found.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {found.st_uid} alone (its mode lacks the sticky bit)"
    return ""
