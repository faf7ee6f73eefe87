"""In which phase of the test each rank is, whether it may fail there, and whether somebody debugs it: two bytes for each,
in memory that a world shares with its ranks.

A message for each phase would wake the world up three times in every rank's test, for something that only matters when
a rank dies or hangs; and then a rank could not tell it any more.
"""

from __future__ import annotations

from pathlib import Path

from disttest.boards import Board, BoardWriter

PHASES = ("setup", "call", "teardown")
_BEGUN = 0x40
# Added to a phase: it has begun; the test is expected to fail in it.
_XFAIL = 0x80


class PhaseBoard(Board):
    """The bytes of all ranks of a world: first those of the phases, then those of who is debugged."""

    def __init__(self, size: int) -> None:
        """Make the board, every rank at the first phase.

        Args:
            size: how many ranks write to it.
        """
        super().__init__("disttest-phases", 2 * size)
        self._size = size

    def reset(self) -> None:
        """All ranks are at the first phase: a test begins. Who is debugged still is."""
        self._memory[: self._size] = bytes(self._size)

    def read(self, place: int) -> str:
        """The phase of a rank; whatever a broken one wrote there is read as some phase."""
        return PHASES[min(self._memory[place] & ~(_BEGUN | _XFAIL), len(PHASES) - 1)]

    def expects_failure(self, place: int) -> bool:
        """Whether the test was marked as an expected failure when the rank's phase began, as far as one has begun."""
        return not self._memory[place] & _BEGUN or bool(self._memory[place] & _XFAIL)

    def is_held(self, place: int) -> bool:
        """Whether somebody debugs a rank, so that time stands still for all."""
        return bool(self._memory[self._size + place])


class PhaseCell(BoardWriter):
    """A rank's own bytes."""

    def __init__(self, board: Path, place: int) -> None:
        """Open it.

        Args:
            board: where it is, as its world has said.
            place: of this rank among those that write there.

        Raises:
            OSError: the world is gone.
        """
        super().__init__(board)
        self._place = place

    def write(self, phase: str, *, xfail: bool = False) -> None:
        """Say in which phase this rank is, and whether the test is expected to fail."""
        self._memory[self._place] = PHASES.index(phase) | _BEGUN | (_XFAIL if xfail else 0)

    def hold(self, on: bool) -> None:
        """Say that somebody debugs this rank, or does no longer."""
        self._memory[len(self._memory) // 2 + self._place] = on
