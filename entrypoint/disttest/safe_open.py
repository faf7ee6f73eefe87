"""Opening of regular files below a directory. Links, pipes and devices are refused, on the path and at its end.

Use it for directories that others can write to: results of other machines, of containers and of tests, and leases
that users share.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for its writer.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LONGEST_PATH = 4096


def open_regular(path: str | Path, flags: int = os.O_RDONLY, *, at: int | None = None) -> int:
    """Open a regular file; a link as the last component of the path is not followed.

    Args:
        path: the file.
        flags: flags of ``os.open``; the file is never created.
        at: descriptor of the directory that the path is relative to.

    Raises:
        OSError: there is none, or it is not a regular file.
    """
    try:
        fd = os.open(path, flags | _FILE, dir_fd=at)
    except ValueError as error:  # a NUL, or characters that the file system's encoding lacks
        raise OSError(errno.EINVAL, "not the name of a file", str(path)) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from error
        raise
    # The open file is examined, not the path: another process could exchange the file in between.
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return fd


def read_regular(path: str | Path) -> bytes:
    """Read a regular file; a link as the last component of the path is not followed.

    Raises:
        OSError: as :func:`open_regular`.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def read_input(path: str | Path) -> bytes:
    """Read a file that the user named. Links are followed; a pipe without a writer is empty.

    Raises:
        OSError: there is none, or it is a device or a folder.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise OSError(errno.EINVAL, "it is neither a regular file nor a pipe", str(path))
        # Opening must not wait for a writer. Reading may wait for one, such as a process substitution.
        os.set_blocking(fd, True)
        return file.read()


def create_file(path: str | Path, *, mode: int = 0o666, at: int | None = None) -> int:
    """Create a file and open it for writing; never open one that exists.

    Raises:
        OSError: it cannot be created; FileExistsError if the name is taken, even by a dangling link.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=at)


class Tree:
    """The files below one directory, addressed by relative paths. It holds descriptors until it is closed.

    The folder of the last file stays open, because most callers open several files of one folder in succession.
    """

    def __init__(self, root: Path) -> None:
        """Open the directory itself. The user named its path, which may therefore contain links.

        Raises:
            OSError: there is no such directory.
        """
        # `__del__` runs, too, if the directory cannot be opened.
        self._root = self._folder = -1
        self._root = os.open(root, _FOLDER)
        self._folder_name = ""

    # Component by component with openat: results come from other machines and containers, and tests can write to
    # the folders of logs.
    def open(self, path: str) -> int:
        """Open a regular file for reading.

        Raises:
            OSError: there is none, a component is a link, or the path is absolute or leads upwards.
        """
        folder, _, name = path.rpartition("/")
        # An empty component means an absolute path or a double slash.
        if len(path) > _LONGEST_PATH or not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise OSError(errno.EINVAL, "not a path below the directory", path[:_LONGEST_PATH])
        return open_regular(name, at=self._folder_at(folder))

    def _folder_at(self, folder: str) -> int:
        if not folder:
            return self._root
        if folder != self._folder_name or self._folder < 0:
            fresh = self._walk(folder)
            self._close_folder()
            self._folder, self._folder_name = fresh, folder
        return self._folder

    def _walk(self, folder: str) -> int:
        fd = os.dup(self._root)
        for part in folder.split("/"):
            above = fd
            try:
                fd = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
            except ValueError as error:
                raise OSError(errno.EINVAL, "not the name of a folder", part) from error
            finally:
                os.close(above)
        return fd

    def _close_folder(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
        self._folder = -1

    def close(self) -> None:
        """Close the directory."""
        self._close_folder()
        if self._root >= 0:
            os.close(self._root)
        self._root = -1

    def __del__(self) -> None:
        self.close()
