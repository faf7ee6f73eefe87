"""Opens regular files below a directory and nothing else: no link, pipe or device, on the way or at the end.

For directories that others write to: results of other machines, of containers and of tests, and leases that users share.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: to open a pipe would otherwise wait for its writer.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LONGEST_PATH = 4096


def open_regular(path: str | Path, flags: int = os.O_RDONLY, *, at: int | None = None) -> int:
    """A descriptor of a regular file; the last component of the path is not followed.

    Args:
        path: the file.
        flags: how to open it; it is not made.
        at: descriptor of the directory that the path is relative to.

    Raises:
        OSError: there is none, or it is something else than a regular file.
    """
    try:
        fd = os.open(path, flags | _FILE, dir_fd=at)
    except ValueError as error:  # a NUL, or what no file system can say
        raise OSError(errno.EINVAL, "not the name of a file", str(path)) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return fd


def read_regular(path: str | Path) -> bytes:
    """What is in a regular file; the last component of the path is not followed.

    Raises:
        OSError: as :func:`open_regular`.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def read_input(path: str | Path) -> bytes:
    """What is in a file that the user has named: links are followed, and a pipe that no process writes is empty.

    Raises:
        OSError: there is none, or it is a device or a folder.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise OSError(errno.EINVAL, "it is neither a regular file nor a pipe", str(path))
        # To open it must not wait for a writer; to read what one writes (a process substitution) may.
        os.set_blocking(fd, True)
        return file.read()


def create_file(path: str | Path, *, mode: int = 0o666, at: int | None = None) -> int:
    """A descriptor for writing of a file that this call makes, never of one that was there.

    Raises:
        OSError: it cannot be made; FileExistsError where something has its name, be it a link that leads nowhere.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=at)


class Tree:
    """The files below one directory, by their relative paths. Holds descriptors while it lives.

    The folder of the last file stays open: files of one folder are mostly asked for one after another.
    """

    def __init__(self, root: Path) -> None:
        """Open the directory itself, wherever the path to it leads: that one was named by the user.

        Raises:
            OSError: there is no such directory.
        """
        self._root = self._folder = -1
        self._root = os.open(root, _FOLDER)
        self._folder_name = ""

    def open(self, path: str) -> int:
        """A descriptor for reading a regular file.

        Raises:
            OSError: there is none, a component is a link, or the path is absolute or leads upwards.
        """
        folder, _, name = path.rpartition("/")
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
        """Let go of the directory."""
        self._close_folder()
        if self._root >= 0:
            os.close(self._root)
        self._root = -1

    def __del__(self) -> None:
        self.close()
