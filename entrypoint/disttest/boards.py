"""Boards: memory that a process gives to others of its family, so that what they wrote can be read whatever became of them."""

from __future__ import annotations

import mmap
import os
import weakref
from functools import partial
from pathlib import Path

from disttest.descriptors import memory_file


class Board:
    """The side of the process that reads; in anonymous memory, which no full disk can spoil."""

    def __init__(self, name: str, size: int) -> None:
        """Make the board, all zeros.

        Args:
            name: of the memory, for those who look at the process's descriptors.
            size: in bytes.
        """
        self.fd = memory_file(name)
        os.truncate(self.fd, size)
        self._memory = mmap.mmap(self.fd, size)

    @property
    def path(self) -> Path:
        """Where others find it while this process lives, forked ones and new interpreters."""
        return Path(f"/proc/{os.getpid()}/fd/{self.fd}")

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
        os.close(self.fd)


class BoardWriter:
    """The side of a process that writes. A copy of it writes to memory of its own, which nobody reads."""

    def __init__(self, board: Path) -> None:
        """Open the board.

        Args:
            board: where it is, as the process that made it has said.

        Raises:
            OSError: that process is gone.
        """
        fd = os.open(board, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._memory: mmap.mmap | bytearray = mmap.mmap(fd, 0)
        finally:
            os.close(fd)
        # A process keeps for ever what is to be done after a fork: that may not hold the writer.
        os.register_at_fork(after_in_child=partial(_let_go, weakref.ref(self)))

    def let_go(self) -> None:
        """Write to memory of its own from now on."""
        self._memory = bytearray(len(self._memory))


def _let_go(reference: weakref.ref[BoardWriter]) -> None:
    if (writer := reference()) is not None:
        writer.let_go()
