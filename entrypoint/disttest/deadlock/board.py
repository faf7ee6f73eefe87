"""The board of a world on which ranks say what they wait in: a slot for each of them."""

from __future__ import annotations

from disttest.boards import Board
from disttest.deadlock.layout import SLOT


class WaitBoard(Board):
    """The world's side."""

    def __init__(self, ranks: int) -> None:
        """Make the board.

        Args:
            ranks: how many write to it.
        """
        super().__init__("disttest-waits", ranks * SLOT)

    def slot(self, place: int) -> bytes:
        """What a rank has written so far."""
        return self._memory[place * SLOT : (place + 1) * SLOT]
