"""Find the ranks that one rank waited for in vain, by what all ranks had called when its wait failed. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from disttest.observe.records import ANY_SOURCE, Call
from disttest.plugins.deadlock.layout import Direction
from disttest.plugins.deadlock.queued_calls import issued, needs
from disttest.plugins.deadlock.snapshot import Counts, Snapshot


def find_awaited(ranks: Mapping[int, Snapshot], waiter: int, call: Call) -> tuple[int, ...]:
    """Return the ranks that have not made their part of a call.

    Args:
        ranks: the board of each rank of the world.
        waiter: the rank whose wait has failed.
        call: the call that it waited for.

    Returns:
        Ranks of the world; nothing if a board is incomplete.
    """
    if any(snapshot.has_gap or snapshot.rank not in (-1, rank) for rank, snapshot in ranks.items()):
        return ()
    group = (call.group.name, call.group.ranks)
    if call.peer is None:
        needed = (m for m in group[1] if needs(call.op, call.root, waiter, m, in_queue=False))
        return tuple(m for m in needed if m != waiter and m in ranks and issued(ranks[m], group) < call.seq)
    if call.peer == ANY_SOURCE or call.peer not in ranks:
        return ()
    answer = Direction.RECEIVE if call.op == "send" else Direction.SEND
    met = ranks[call.peer].channels.get((group, answer, waiter, call.tag), Counts(issued=0, done=0))
    return () if met.issued >= call.seq else (call.peer,)
