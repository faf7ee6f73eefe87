"""A rank takes no group down, and does not end, while another one is still being connected in a group that it has itself.

A test that makes a group and ends may be over in one rank before the others have come through the making. Gloo closes
its connections then and fails in those others (``connectFullMesh … Connection closed by peer``): on a busy machine, one
such test in thirty, for no fault of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from disttest.clock import monotonic, sleep
from disttest.observe import Group, Tool, Wait, WaitKind
from disttest.plugins.deadlock.layout import write_ranks
from disttest.plugins.deadlock.limits import LATE_PEER_POLL_S, LATE_PEER_S
from disttest.plugins.deadlock.snapshot import groups_in_the_making


class LatePeers(Tool):
    """What this rank has come through, beside what the others are in."""

    def __init__(self, peers: Callable[[], Iterable[bytes]]) -> None:
        """A tool of one rank.

        Args:
            peers: reads the slots of the others on the board of waits.
        """
        self._peers = peers
        self.begin()

    def begin(self) -> None:
        """A test begins."""
        self._made: Counter[str] = Counter()
        """By members: how many groups of them this rank has come through."""

    def on_group(self, group: Group, *, made: bool) -> None:
        """Count it."""
        if made:
            self._made[write_ranks(group.ranks)] += 1

    def on_wait(self, wait: Wait) -> None:
        """A group is about to be made, or (it has no members then) to be taken down."""
        if wait.kind is WaitKind.GROUP and not wait.ranks:
            self.wait()

    def wait(self) -> None:
        """Until nobody is late, or for a moment: a rank may have died in there."""
        deadline = monotonic() + LATE_PEER_S
        while self._somebody_is_late() and monotonic() < deadline:
            sleep(LATE_PEER_POLL_S)

    def _somebody_is_late(self) -> bool:
        if not self._made:
            return False
        return any(
            n <= self._made[ranks] for slot in self._peers() for ranks, n in groups_in_the_making(slot)
        )
