"""Boards: memory shared with related processes, readable even after those have crashed."""

from __future__ import annotations

import mmap
import os
import weakref
from functools import partial
from pathlib import Path

from disttest.descriptors import memory_file


class Board:
    """The reader's side of a board. It is anonymous memory, so a full disk cannot damage it."""

    def __init__(self, name: str, size: int) -> None:
        """Create the board, filled with zeros.

        Args:
            name: name of the memory, shown among the descriptors of the process.
            size: size in bytes.
        """
        self.fd = memory_file(name)
        os.truncate(self.fd, size)
        self._memory = mmap.mmap(self.fd, size)

    @property
    def path(self) -> Path:
        """Path by which forks and new interpreters open the board while this process lives."""
        return Path(f"/proc/{os.getpid()}/fd/{self.fd}")

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()
        os.close(self.fd)


class BoardWriter:
    """The writer's side of a board. After a fork, the child's copy writes to private memory that is never read."""

    def __init__(self, board: Path) -> None:
        """Open the board.

        Args:
            board: its path, as the process that made it reported.

        Raises:
            OSError: the process that made it has ended.
        """
        fd = os.open(board, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._memory: mmap.mmap | bytearray = mmap.mmap(fd, 0)
        finally:
            # The mapping keeps the memory. Tests count descriptors, and close those that they do not know.
            os.close(fd)
        # `os.register_at_fork` keeps its callbacks until the process ends; a strong reference would keep the
        # writer, too.
        os.register_at_fork(after_in_child=partial(_let_go, weakref.ref(self)))

    def let_go(self) -> None:
        """Write to private memory from now on."""
        self._memory = bytearray(len(self._memory))


def _let_go(reference: weakref.ref[BoardWriter]) -> None:
    if (writer := reference()) is not None:
        writer.let_go()
