"""The part in a rank: it writes the waits of the rank to the board, and asks the board about those of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from disttest import observe
from disttest.observe import Tool, Wait
from disttest.plugins.deadlock.awaited_ranks import find_awaited
from disttest.plugins.deadlock.board_tool import BoardTool
from disttest.plugins.deadlock.expect import provide_board
from disttest.plugins.deadlock.late_peers import LatePeers
from disttest.plugins.deadlock.snapshot import read_slot
from disttest.runtime.rank.waits import WatchedRank


class WaitingRank(WatchedRank):
    """A rank that is observed.

    Args:
        board: of its world.
        place: of this rank there.
    """

    def __init__(self, board: Path, place: int) -> None:
        self._tool = BoardTool(board, place)
        self._late = LatePeers(self._tool.peers)
        self._failed = _FailedWaits(self._tool.slots, place)
        observe.install(self._tool, self._late, self._failed)
        provide_board(self._tool.expect)

    def begin(self) -> None:
        """Forget the test before."""
        self._tool.begin(has_gap=bool(observe.gaps()))
        self._late.begin()
        self._failed.begin()

    def awaited(self) -> tuple[int, ...]:
        """The ranks that had not joined the last call whose wait has failed."""
        return self._failed.awaited

    def leave(self) -> None:
        """Stay until the others are through with making their groups."""
        self._late.wait()


class _FailedWaits(Tool):
    """The last failed wait of this rank, with the ranks that had not joined the call at that moment.

    Later is too late: when the test is over, groups are taken down and the board no longer shows the calls.

    Args:
        slots: reads the slots of all ranks on the board.
        rank: this one.
    """

    def __init__(self, slots: Callable[[], Mapping[int, bytes]], rank: int) -> None:
        self._slots, self._rank = slots, rank
        self.begin()

    def begin(self) -> None:
        """A test begins."""
        self.awaited: tuple[int, ...] = ()

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """A wait is over."""
        if error is not None and wait.call is not None:
            ranks = {rank: read_slot(slot) for rank, slot in self._slots().items()}
            self.awaited = find_awaited(ranks, self._rank, wait.call)
