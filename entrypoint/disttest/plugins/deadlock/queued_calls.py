"""Calls in the queues of GPUs, and those that never begin because they wait for each other in a circle. Pure.

A rank's part of a collective begins when the call before it in its stream is complete, which requires other ranks
to begin their parts of that one. Two groups that two ranks use in opposite orders therefore wait for each other,
although all ranks have issued all calls. Unknown calls (no longer on the board, or messages) count as complete.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from disttest.model import FROM_ROOT, TO_ROOT
from disttest.plugins.deadlock.snapshot import GroupKey, IssuedCollective, Snapshot

_WITH_ROOT_ALONE = frozenset({"scatter", "gather", "gather_into_tensor"})
"""Collectives in which ranks other than the root communicate only with the root."""
_UNEVEN = frozenset({"alltoall", "alltoall_base"})
"""Collectives in which ranks without data for each other do not communicate."""


class QueuedCall(NamedTuple):
    """A rank's part of a collective."""

    rank: int
    group: GroupKey
    seq: int


def never_begin(last: QueuedCall, all_ranks: Mapping[int, Snapshot]) -> frozenset[QueuedCall]:
    """Return the parts that can no longer begin, among a call in the queue of a GPU and all calls that it depends on.

    Args:
        last: the call of a rank; all members must begin their parts.
        all_ranks: all ranks of the world, none of which will issue another call.
    """
    needed: dict[QueuedCall, Sequence[QueuedCall]] = {}
    found = parts_of(last, all_ranks)
    while found:
        call = found.pop()
        if call not in needed:
            needed[call] = _before(call, all_ranks)
            found += needed[call]
    # A part begins when all parts before it have begun. Parts that wait for themselves through others never
    # enter the set.
    begun: set[QueuedCall] = set()
    while more := {call for call, before in needed.items() if call not in begun and begun.issuperset(before)}:
        begun |= more
    return frozenset(needed.keys() - begun)


def _before(call: QueuedCall, all_ranks: Mapping[int, Snapshot]) -> list[QueuedCall]:
    """Return the parts that must begin before this one."""
    if issued(all_ranks[call.rank], call.group) < call.seq:
        return [call]  # it never begins
    behind = queued_behind(call, all_ranks)
    return [] if behind is None else parts_of(behind, all_ranks)


def queued_behind(call: QueuedCall, all_ranks: Mapping[int, Snapshot]) -> QueuedCall | None:
    """Return the call that must be complete on its rank before this one begins."""
    signature = called(all_ranks[call.rank], call.group, call.seq)
    return QueuedCall(call.rank, *signature.behind) if signature and signature.behind else None


def current_call(
    last: QueuedCall, never: Collection[QueuedCall], all_ranks: Mapping[int, Snapshot]
) -> QueuedCall:
    """Return the call that a GPU is executing on the way to one that never begins there."""
    call, seen = last, {last}  # guards against a circle written by a broken rank
    while call in never and (before := queued_behind(call, all_ranks)) is not None and before not in seen:
        call = before
        seen.add(call)
    return call


def parts_of(call: QueuedCall, all_ranks: Mapping[int, Snapshot]) -> list[QueuedCall]:
    """Return the parts that must begin so that a call can complete on its rank."""
    signature = called(all_ranks[call.rank], call.group, call.seq)
    members = call.group.ranks
    # Each of these is a doubt, and no parts mean that nothing holds the call up.
    if signature is None or signature.op in _UNEVEN or not all_ranks.keys() >= {call.rank, *members}:
        return []
    return [
        QueuedCall(member, call.group, call.seq)
        for member in members
        if member == call.rank or needs(signature.op, signature.root, call.rank, member, in_queue=True)
    ]


def needs(op: str, root: int | None, rank: int, member: int, *, in_queue: bool) -> bool:
    """Return whether a rank's part of a collective needs that of another member.

    Args:
        op: the operation.
        root: its root.
        rank: the rank.
        member: the other rank.
        in_queue: whether the part is in the queue of a GPU.
    """
    # A GPU releases senders as soon as there is buffer space for their data.
    if in_queue and op in FROM_ROOT | TO_ROOT:
        return (member if op in FROM_ROOT else rank) == root
    return op not in _WITH_ROOT_ALONE or root in (rank, member)


def issued(snapshot: Snapshot, group: GroupKey) -> int:
    """Return the number of collectives of a group that a rank has issued."""
    state = snapshot.groups.get(group)
    return state.issued if state else 0


def called(snapshot: Snapshot, group: GroupKey, seq: int) -> IssuedCollective | None:
    """Return the call of a rank at a number of a group, if it is still on its board."""
    state = snapshot.groups.get(group)
    signature = state.calls.get(seq) if state else None
    return signature if signature and signature.op else None
