"""The part in a rank: it writes the rank's waits to the board, and reads those of other ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from disttest import observe
from disttest.clock import monotonic, sleep
from disttest.observe import ANY_SOURCE, Call, Group, Tool, Wait, WaitKind
from disttest.options.environment import torch_switch
from disttest.plugins.deadlock.board_tool import BoardTool
from disttest.plugins.deadlock.expect import provide_board
from disttest.plugins.deadlock.layout import Direction, write_ranks
from disttest.plugins.deadlock.limits import LATE_PEER_POLL_S, LATE_PEER_S
from disttest.plugins.deadlock.queued_calls import issued, needs
from disttest.plugins.deadlock.snapshot import (
    Counts,
    GroupKey,
    Snapshot,
    groups_in_the_making,
    read_slot,
)
from disttest.runtime.rank.waits import WatchedRank


class LatePeers(Tool):
    """Delays a rank that destroys a group or exits while another rank is still connecting to a group.

    A test that creates a group and returns may be over in one rank before the others have connected. Gloo then closes
    its connections, and the others fail (``connectFullMesh … Connection closed by peer``). On a busy machine that
    happened to one such test in thirty.
    """

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
        # A peer that has died while it connected stays on the board as if it connected still.
        deadline = monotonic() + LATE_PEER_S
        while self._is_peer_late() and monotonic() < deadline:
            sleep(LATE_PEER_POLL_S)

    def _is_peer_late(self) -> bool:
        if not self._made:
            return False
        # A number above its own belongs to a group that this rank has not made yet, and so cannot destroy.
        return any(
            n <= self._made[ranks] for slot in self._peers() for ranks, n in groups_in_the_making(slot)
        )


class WaitingRank(WatchedRank):
    """The watched rank.

    Args:
        board: board of its world.
        place: index of this rank's slot.
    """

    def __init__(self, board: Path, place: int) -> None:
        self._tool = BoardTool(board, place)
        self._late = LatePeers(self._tool.peers)
        self._failed = _FailedWaits(self._tool.slots, place)
        observe.install(self._tool, self._late, self._failed)
        # Without it all ranks are connected when the group is made, and such a call returns when it is
        # queued.
        if torch_switch("TORCH_GLOO_LAZY_INIT"):
            observe.install(Connecting(self._tool))
        provide_board(self._tool.expect)

    def begin(self) -> None:
        """Reset for a new test."""
        self._tool.begin(has_gap=bool(observe.gaps()))
        self._late.begin()
        self._failed.begin()

    def awaited(self) -> tuple[int, ...]:
        """Return the ranks that had not joined the last call whose wait failed."""
        return self._failed.awaited

    def leave(self) -> None:
        """Wait until other ranks have finished creating their groups."""
        self._late.wait()


class Connecting(Tool):
    """Shows point-to-point calls as waits while gloo passes them on.

    With ``TORCH_GLOO_LAZY_INIT``, the first call to a peer returns when the two are connected. In half of the pairs, that
    is when the peer makes its first call to this rank, which may be never.

    Args:
        board: the tool that writes the waits.
    """

    def __init__(self, board: BoardTool) -> None:
        self._board = board
        self._waits: dict[int, Wait] = {}

    def on_issue(self, call: Call) -> None:
        """Record the beginning of the call."""
        if call.peer is not None and not call.by_cpp:
            wait = self._waits[call.n] = Wait(
                n=0,
                kind=WaitKind.OPERATION,
                call=call.without_tensors(),
                keys=(),
                timeout_s=call.timeout_s,
                site=call.site,
                thread=call.thread,
            )
            self._board.on_wait(wait)

    def on_return(self, call: Call, _work: object) -> None:
        """Record that the call was passed on. It is not done, and whoever needs it waits for its handle."""
        if (wait := self._waits.pop(call.n, None)) is not None:
            self._board.end_wait(wait)

    def on_error(self, call: Call, _error: BaseException) -> None:
        """Record that the call was refused."""
        self.on_return(call, None)


class _FailedWaits(Tool):
    """The last failed wait of this rank, with the ranks that had not joined the call at that moment.

    It is recorded immediately: when the test is over, groups are destroyed and the board no longer shows the calls.

    Args:
        slots: reads the slots of all ranks on the board.
        rank: this rank.
    """

    def __init__(self, slots: Callable[[], Mapping[int, bytes]], rank: int) -> None:
        self._slots, self._rank = slots, rank
        self.begin()

    def begin(self) -> None:
        """Reset for a new test."""
        self.awaited: tuple[int, ...] = ()

    def on_done(self, wait: Wait, error: BaseException | None) -> None:
        """Record a failed wait."""
        if error is not None and wait.call is not None:
            # The rank reads the boards, not the world. In an attempt the world read them when the report
            # arrived. On two busy processors the rank had destroyed its group by then, and one of three runs
            # of monitored_barrier named no rank.
            ranks = {rank: read_slot(slot) for rank, slot in self._slots().items()}
            self.awaited = find_awaited(ranks, self._rank, wait.call)


def find_awaited(ranks: Mapping[int, Snapshot], waiter: int, call: Call) -> tuple[int, ...]:
    """Return the ranks that have not issued their part of a call, by the calls of all ranks when the wait for it
    failed.

    Args:
        ranks: the board of each rank of the world.
        waiter: the rank whose wait has failed.
        call: the awaited call.

    Returns:
        Ranks of the world; none if a board is incomplete.
    """
    # An incomplete board may lack the very call, and its rank would be accused for nothing.
    if any(snapshot.has_gap or snapshot.rank not in (-1, rank) for rank, snapshot in ranks.items()):
        return ()
    group = GroupKey(name=call.group.name, ranks=call.group.ranks)
    if call.peer is None:
        needed = (m for m in group.ranks if needs(call.op, call.root, waiter, m, in_queue=False))
        return tuple(m for m in needed if m != waiter and m in ranks and issued(ranks[m], group) < call.seq)
    if call.peer == ANY_SOURCE or call.peer not in ranks:
        return ()
    answer = Direction.RECEIVE if call.op == "send" else Direction.SEND
    met = ranks[call.peer].channels.get((group, answer, waiter, call.tag), Counts(issued=0, done=0))
    return () if met.issued >= call.seq else (call.peer,)
