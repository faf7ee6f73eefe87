"""Note the ranks that had not joined a call, at the moment when the wait for it fails.

Later is too late: when the test is over, groups are taken down and the boards no longer show what was called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from disttest.deadlock.awaited_ranks import find_awaited
from disttest.deadlock.snapshot import read_slot
from disttest.observe import Tool, Wait


class FailedWaits(Tool):
    """The last failed wait of this rank."""

    def __init__(self, slots: Callable[[], Mapping[int, bytes]], rank: int) -> None:
        """A tool of one rank.

        Args:
            slots: reads the slots of all ranks on the board of waits.
            rank: this one.
        """
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
