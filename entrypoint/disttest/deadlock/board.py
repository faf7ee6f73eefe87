"""The board of a world: a slot for each of its ranks, in memory that both have."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from disttest.deadlock.layout import SLOT
from disttest.descriptors import memory_file


class Board:
    """The world's side; in anonymous memory, which no full disk can spoil."""

    def __init__(self, ranks: int) -> None:
        """Make the board.

        Args:
            ranks: how many write to it.
        """
        self._fd = memory_file("disttest-waits")
        os.truncate(self._fd, ranks * SLOT)
        self._memory = mmap.mmap(self._fd, ranks * SLOT)

    @property
    def path(self) -> Path:
        """Where ranks find it while this process lives, forked ones and new interpreters."""
        return Path(f"/proc/{os.getpid()}/fd/{self._fd}")

    def slot(self, place: int) -> bytes:
        """What a rank has written so far."""
        return self._memory[place * SLOT : (place + 1) * SLOT]

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
        os.close(self._fd)
