"""Calls in the queues of GPUs, and which of them never begin: each waits for another one, in a circle. Pure.

A rank's part of a collective begins when the one before it in its stream is over there, for which other ranks have to begin
their parts of that one. So two groups that two ranks use in two orders wait for each other, though everybody has made all
calls. What is not known (a call that is no longer on the board, a message) counts as over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from disttest.model import FROM_ROOT, TO_ROOT
from disttest.plugins.deadlock.snapshot import GroupKey, IssuedCollective, Snapshot

_WITH_ROOT_ALONE = frozenset({"scatter", "gather", "gather_into_tensor"})
"""What ranks other than the root do with the root and nobody else."""
_UNEVEN = frozenset({"alltoall", "alltoall_base"})
"""What ranks that have nothing for each other do without each other."""


class QueuedCall(NamedTuple):
    """A rank's part of a collective."""

    rank: int
    group: GroupKey
    seq: int


def never_begin(last: QueuedCall, everybody: Mapping[int, Snapshot]) -> frozenset[QueuedCall]:
    """Of a call in the queue of a GPU, and all that it has to wait for: the parts that cannot begin any more.

    Args:
        last: of a rank; whatever it says, all members have to begin theirs.
        everybody: all ranks of the world, none of which will call anything more.
    """
    needed: dict[QueuedCall, Sequence[QueuedCall]] = {}
    found = parts_of(last, everybody)
    while found:
        call = found.pop()
        if call not in needed:
            needed[call] = _before(call, everybody)
            found += needed[call]
    begun: set[QueuedCall] = set()
    while more := {call for call, before in needed.items() if call not in begun and begun.issuperset(before)}:
        begun |= more
    return frozenset(needed.keys() - begun)


def _before(call: QueuedCall, everybody: Mapping[int, Snapshot]) -> list[QueuedCall]:
    """What has to begin before it does."""
    if issued(everybody[call.rank], call.group) < call.seq:
        return [call]  # never
    behind = queued_behind(call, everybody)
    return [] if behind is None else parts_of(behind, everybody)


def queued_behind(call: QueuedCall, everybody: Mapping[int, Snapshot]) -> QueuedCall | None:
    """The one that has to be over on its rank before it begins."""
    signature = called(everybody[call.rank], call.group, call.seq)
    return QueuedCall(call.rank, *signature.behind) if signature and signature.behind else None


def current_call(
    last: QueuedCall, never: Collection[QueuedCall], everybody: Mapping[int, Snapshot]
) -> QueuedCall:
    """The call that a GPU is at, on its way to one that never begins there."""
    call, seen = last, {last}  # a broken rank may have written a circle
    while call in never and (before := queued_behind(call, everybody)) is not None and before not in seen:
        call = before
        seen.add(call)
    return call


def parts_of(call: QueuedCall, everybody: Mapping[int, Snapshot]) -> list[QueuedCall]:
    """What has to begin so that a call can be over on its rank."""
    signature = called(everybody[call.rank], call.group, call.seq)
    members = call.group[1]
    if signature is None or signature.op in _UNEVEN or not everybody.keys() >= {call.rank, *members}:
        return []
    return [
        QueuedCall(member, call.group, call.seq)
        for member in members
        if member == call.rank or needs(signature.op, signature.root, call.rank, member, in_queue=True)
    ]


def needs(op: str, root: int | None, rank: int, member: int, *, in_queue: bool) -> bool:
    """Whether a rank's part of a collective needs that of another member.

    Args:
        op: what is called.
        root: of it.
        rank: whose part.
        member: the other one.
        in_queue: the part is one of a GPU.
    """
    # A GPU lets senders go as soon as there is room for what they send.
    if in_queue and op in FROM_ROOT | TO_ROOT:
        return (member if op in FROM_ROOT else rank) == root
    return op not in _WITH_ROOT_ALONE or root in (rank, member)


def issued(snapshot: Snapshot, group: GroupKey) -> int:
    """How many collectives of a group a rank has called."""
    state = snapshot.groups.get(group)
    return state.issued if state else 0


def called(snapshot: Snapshot, group: GroupKey, seq: int) -> IssuedCollective | None:
    """What a rank has called at a number of a group, if it is still on its board."""
    state = snapshot.groups.get(group)
    signature = state.calls.get(seq) if state else None
    return signature if signature and signature.op else None
