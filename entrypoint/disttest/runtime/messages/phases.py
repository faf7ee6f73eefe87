"""Phase of each rank, whether the test may fail there, and whether the rank is being debugged: two bytes per rank.

The bytes are in memory that a world shares with its ranks. A message for each phase would wake the world three times
per rank and test, for information that matters only if a rank dies or hangs, when it cannot send messages any more.
"""

from __future__ import annotations

from pathlib import Path

from disttest.boards import Board, BoardWriter

PHASES = ("setup", "call", "teardown")
# Added to a phase: it has begun; the test is expected to fail in it, also by a failed assertion.
_BEGUN = 0x40
_XFAIL = 0x80
_XFAIL_ASSERTION = 0x20
_FLAGS = _BEGUN | _XFAIL | _XFAIL_ASSERTION


class PhaseBoard(Board):
    """The bytes of all ranks of a world: first the phases, then the debugger flags."""

    def __init__(self, size: int) -> None:
        """Create the board with every rank in the first phase.

        Args:
            size: number of ranks.
        """
        super().__init__("disttest-phases", 2 * size)
        self._size = size

    def reset(self) -> None:
        """Reset the phases at the start of a test; the debugger flags stay."""
        self._memory[: self._size] = bytes(self._size)

    def read(self, place: int) -> str:
        """Return the phase of a rank; any byte that a broken rank writes is read as some phase."""
        # Bytes are written and read atomically, so no lock is needed.
        return PHASES[min(self._memory[place] & ~_FLAGS, len(PHASES) - 1)]

    def expects_failure(self, place: int) -> bool:
        """Whether the test was an expected failure when the current phase began; True before the first one."""
        return not self._memory[place] & _BEGUN or bool(self._memory[place] & _XFAIL)

    def expects_assertion(self, place: int) -> bool:
        """Whether a failed assertion was expected when the current phase began: ``raises=`` may name other exceptions."""
        return not self._memory[place] & _BEGUN or bool(self._memory[place] & _XFAIL_ASSERTION)

    def is_held(self, place: int) -> bool:
        """Whether the rank is being debugged, so that time limits are suspended for all."""
        return bool(self._memory[self._size + place])


class PhaseCell(BoardWriter):
    """A rank's own bytes."""

    def __init__(self, board: Path, place: int) -> None:
        """Open the board.

        Args:
            board: its path, passed by the world.
            place: index of this rank among the writers.

        Raises:
            OSError: the world has ended.
        """
        super().__init__(board)
        self._place = place

    def write(self, phase: str, *, xfail: bool = False, by_assertion: bool = False) -> None:
        """Write the phase of this rank, and whether the test is expected to fail in it, and by a failed assertion."""
        expected = (_XFAIL if xfail else 0) | (_XFAIL_ASSERTION if by_assertion else 0)
        self._memory[self._place] = PHASES.index(phase) | _BEGUN | expected

    def hold(self, on: bool) -> None:
        """Write whether this rank is being debugged."""
        self._memory[len(self._memory) // 2 + self._place] = on
