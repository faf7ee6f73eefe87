"""Delay of a rank that destroys a group or exits while another rank is still connecting to a group of its own.

A test that creates a group and returns may be over in one rank before the others have connected. Gloo then closes
its connections, and the others fail (``connectFullMesh … Connection closed by peer``). On a busy machine that
happened to one such test in thirty.
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
    """The groups that this rank has created, compared with the groups that others are creating."""

    def __init__(self, peers: Callable[[], Iterable[bytes]]) -> None:
        """Create the tool of one rank.

        Args:
            peers: reads the slots of the other ranks on the board.
        """
        self._peers = peers
        self.begin()

    def begin(self) -> None:
        """Reset for a new test."""
        self._made: Counter[str] = Counter()
        """Number of groups that this rank has finished creating, by members."""

    def on_group(self, group: Group, *, made: bool) -> None:
        """Count a created group."""
        if made:
            self._made[write_ranks(group.ranks)] += 1

    def on_wait(self, wait: Wait) -> None:
        """Wait before a group is destroyed. A wait for a group without members is its destruction."""
        if wait.kind is WaitKind.GROUP and not wait.ranks:
            self.wait()

    def wait(self) -> None:
        """Wait until no rank is late, within a limit, because a rank may have died meanwhile."""
        deadline = monotonic() + LATE_PEER_S
        while self._is_peer_late() and monotonic() < deadline:
            sleep(LATE_PEER_POLL_S)

    def _is_peer_late(self) -> bool:
        if not self._made:
            return False
        return any(
            n <= self._made[ranks] for slot in self._peers() for ranks, n in groups_in_the_making(slot)
        )
