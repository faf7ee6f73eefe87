"""The proof that no rank can continue, from the boards of all ranks. Pure.

A wait is open if the calls issued so far do not end it. If every rank that is still in the test waits, and all
their waits are open, no rank is left to issue a call: that is the proof. It is attempted only after nothing has
changed for a while, so that a wait that could end would have ended. Every doubt therefore counts against the proof:
one false proof costs more than many hangs that run into their limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from disttest.model import Edge, Frozen, rank_names
from disttest.observe.operations import title_of
from disttest.observe.records import ANY_SOURCE, WaitKind
from disttest.plugins.deadlock import wait_words
from disttest.plugins.deadlock.differing_calls import have_other_sizes
from disttest.plugins.deadlock.layout import Direction, read_ranks
from disttest.plugins.deadlock.limits import TORCH_GROUP_LIMIT_S, TORCH_STORE_LIMIT_S
from disttest.plugins.deadlock.proven import Deadlock, DeadlockKind
from disttest.plugins.deadlock.queued_calls import (
    QueuedCall,
    called,
    current_call,
    issued,
    needs,
    never_begin,
    parts_of,
    queued_behind,
)
from disttest.plugins.deadlock.snapshot import Counts, IssuedCollective, Snapshot, Waiting


class Open(Frozen):
    """A wait that no call has ended, with the reason."""

    rank: int
    wait: Waiting
    kind: DeadlockKind
    ranks: tuple[int, ...]
    """The ranks that would have to act."""
    other: str = ""
    """The call that the first of them has issued instead."""


class Situation(Frozen):
    """A world at one moment."""

    ranks: Mapping[int, Snapshot]
    """The ranks that are still in the test."""
    over: Mapping[int, Snapshot]
    """The ranks that have finished the test or ended, with their calls."""
    now_s: float
    """Time on the monotonic clock, as below."""
    began_s: float
    deadline_s: float
    """End of the test in any case."""
    dead: frozenset[int] = frozenset()
    """Those of the finished ranks whose process has ended."""
    skipped: Mapping[int, str] = {}
    """Those of the finished ranks that skipped the test, with the reason."""


# A proof, not a long silence: a wrong accusation costs trust in every verdict, so every doubt counts for the test.
# docs/decisions/0022-deadlock-is-a-proof.md
def find_deadlock(situation: Situation) -> Deadlock | None:
    """Return the proof; None if a rank may continue, or if it is unknown."""
    all_ranks = {**situation.over, **situation.ranks}
    if not situation.ranks or not all(snapshot.is_observed for snapshot in situation.ranks.values()):
        return None
    # Ranks that have finished count as well: their calls decide whether the others can go on.
    if any(snapshot.has_gap for snapshot in all_ranks.values()) or not _are_themselves(all_ranks):
        return None
    found: list[Open] = []
    for rank in sorted(situation.ranks):
        # A rank without a known wait is computing, and one wait that may end lets its rank go on. Either
        # refutes the deadlock.
        waits = tuple(open_waits(rank, all_ranks, situation))
        if not waits or None in waits:
            return None
        # Several threads of a rank may wait for the same call, which the message lists once.
        found += [wait for wait in dict.fromkeys(waits) if wait is not None]
    return _proof(found, situation)


def _are_themselves(all_ranks: Mapping[int, Snapshot]) -> bool:
    """Return whether ranks of the default group are ranks of the world, as records of calls assume."""
    return all(snapshot.rank in (-1, rank) for rank, snapshot in all_ranks.items())


def open_waits(rank: int, all_ranks: Mapping[int, Snapshot], situation: Situation) -> Iterator[Open | None]:
    """Yield the open waits of a rank; None for one that may end."""
    waits = [(wait, _open(rank, wait, all_ranks)) for wait in all_ranks[rank].waits]
    held = {wait.thread for wait, found in waits if found is not None and wait.kind is WaitKind.DEVICE}
    for wait, found in waits:
        if found is None and (wait.in_cpp or wait.thread in held):
            continue  # the wait is not certain, or its GPU waits for another call, too
        if found is None or _gives_up(wait, situation):
            yield None
        else:
            yield found


def _gives_up(wait: Waiting, situation: Situation) -> bool:
    """Return whether a wait may time out before the test does."""
    # torch's default limits do not count. Otherwise nothing would be proven with a `--timeout` above them,
    # or with none.
    in_store = wait.kind in (WaitKind.STORE, WaitKind.GROUP)
    limit_s = TORCH_STORE_LIMIT_S if in_store else TORCH_GROUP_LIMIT_S
    # A wait that may time out before the test ends lets its rank go on, so it proves nothing.
    return wait.until_s < min(situation.deadline_s, situation.began_s + limit_s)


def _open(rank: int, wait: Waiting, all_ranks: Mapping[int, Snapshot]) -> Open | None:
    if wait.op:
        if wait.group is None or rank not in wait.group.ranks:
            return None
        return (_open_p2p if wait.peer is not None else _open_collective)(rank, wait, all_ranks)
    if wait.kind is WaitKind.STORE:
        return Open(rank=rank, wait=wait, kind=DeadlockKind.STORE, ranks=_others(rank, all_ranks))
    if wait.kind is WaitKind.GROUP and wait.keys:
        return _open_making(rank, wait, all_ranks)
    return None


def _open_making(rank: int, wait: Waiting, all_ranks: Mapping[int, Snapshot]) -> Open | None:
    """Return whether a group is still incomplete: it is made when all its members make it."""
    try:
        members = read_ranks(wait.keys)
    except ValueError:  # cut, or written by a broken rank
        return None
    # A process outside of the world has no slot, and may come at any time.
    if any(member not in all_ranks for member in members):
        return None
    missing = tuple(m for m in members if not any(_is_same(wait, other) for other in all_ranks[m].waits))
    if not missing:
        return None
    other = next(filter(None, (_made_instead(wait, all_ranks[m]) for m in missing)), "")
    return Open(rank=rank, wait=wait, kind=DeadlockKind.ALONE, ranks=missing, other=other)


def _is_same(making: Waiting, other: Waiting) -> bool:
    """Return whether two ranks create the same group: members and name, its number on each rank, are equal."""
    return other.kind is WaitKind.GROUP and (other.keys, other.name) == (making.keys, making.name)


def _made_instead(wait: Waiting, snapshot: Snapshot) -> str:
    """Name the group that a rank has made, or is making, instead of one that another rank is making."""
    same = snapshot.makings.get(wait.name)
    if wait.name and same is not None and same.ranks != wait.keys:
        line = f" at {same.where}" if same.where else ""
        return f"{wait_words.making_name(same.ranks, wait.name)} in its place{line}"
    other = next((w for w in snapshot.waits if w.kind is WaitKind.GROUP and w.keys == wait.keys), None)
    return f"{wait_words.making_name(other.keys, other.name)} in its place" if other else ""


def _others(rank: int, all_ranks: Mapping[int, Snapshot]) -> tuple[int, ...]:
    return tuple(sorted(other for other in all_ranks if other != rank))


# --- collectives


def _open_collective(rank: int, wait: Waiting, all_ranks: Mapping[int, Snapshot]) -> Open | None:
    assert wait.group is not None
    members = [member for member in wait.group.ranks if member != rank and _counts(wait, rank, member)]
    if any(member not in all_ranks for member in members):
        return None
    # Groups issue their calls in order, so a count below this number means that the call has not been made.
    missing = tuple(m for m in members if issued(all_ranks[m], wait.group) < wait.seq)
    for member in members:
        # None: the member has not made the call, or so many later ones that the board has lost it.
        theirs = called(all_ranks[member], wait.group, wait.seq)
        if theirs is None:
            continue
        # The operations are compared before the roots: a root has no meaning between different operations.
        if theirs.op != wait.op:
            other = f"{title_of(theirs.op)} in its place{_line(theirs, member, wait, all_ranks)}"
            return Open(rank=rank, wait=wait, kind=DeadlockKind.MISMATCH, ranks=(member,), other=other)
        if theirs.root != wait.root:
            other = (
                f"it with root {theirs.root} instead of {wait.root}{_line(theirs, member, wait, all_ranks)}"
            )
            return Open(rank=rank, wait=wait, kind=DeadlockKind.ROOTS, ranks=(member,), other=other)
    # Sizes come last: they matter only if operation and root agree.
    uneven = next(filter(None, (_open_uneven(rank, m, wait, all_ranks) for m in members)), None)
    if uneven is not None:
        return uneven
    if not missing:
        return _open_queued(rank, wait, all_ranks) if wait.kind is WaitKind.DEVICE else None
    first = _first_missing(rank, wait, all_ranks, missing)
    return Open(rank=rank, wait=first, kind=DeadlockKind.CYCLE, ranks=missing)


def _open_uneven(rank: int, member: int, wait: Waiting, all_ranks: Mapping[int, Snapshot]) -> Open | None:
    """Find the first call up to this one for which the two ranks passed tensors of different sizes.

    Gloo ignores sizes. A part that is too short keeps its receiver waiting, at the latest in the next call. The
    rest of a part that is too long is used for the next call.
    """
    assert wait.group is not None
    state, others = (all_ranks[each].groups.get(wait.group) for each in (rank, member))
    # The usual case is one comparison. 256 ranks make 32,640 pairs.
    if state is None or others is None or state.calls == others.calls:
        return None
    in_queue = wait.kind is WaitKind.DEVICE
    for seq in sorted(state.calls):
        mine, theirs = (called(all_ranks[each], wait.group, seq) for each in (rank, member))
        # The board keeps only the last calls of a group, so either side may lack an earlier one.
        if mine is None or theirs is None or seq > wait.seq or mine.op != theirs.op:
            continue
        if not needs(mine.op, mine.root, rank, member, in_queue=in_queue):
            continue
        if have_other_sizes(mine, theirs, in_queue=in_queue):
            call = "it" if seq == wait.seq else f"{title_of(mine.op)} #{seq}"
            line = _line(theirs, member, wait, all_ranks)
            other = f"{call} with {theirs.tensors} instead of {mine.tensors}{line}"
            return Open(rank=rank, wait=wait, kind=DeadlockKind.MISMATCH, ranks=(member,), other=other)
    return None


def _line(call: IssuedCollective, rank: int, wait: Waiting, all_ranks: Mapping[int, Snapshot]) -> str:
    """Return `` at a.py:5`` for a call whose rank does not wait there: the line is in no other part of the message."""
    waits_there = any((each.group, each.seq) == (wait.group, wait.seq) for each in all_ranks[rank].waits)
    return f" at {call.where}" if call.where and not waits_there else ""


def _first_missing(
    rank: int, wait: Waiting, all_ranks: Mapping[int, Snapshot], missing: Sequence[int]
) -> Waiting:
    """Return the wait. Of several calls in the queue of a GPU, it is the first that others have not issued."""
    assert wait.group is not None
    # The calls behind the first missing one wait for it as well. Its line is where a reader has to look.
    seq = 1 + min(issued(all_ranks[member], wait.group) for member in missing)
    state = all_ranks[rank].groups.get(wait.group)
    call = state.calls.get(seq) if state else None
    if wait.kind is not WaitKind.DEVICE or call is None:
        return wait
    first = msgspec.structs.replace(wait, seq=seq, op=call.op, root=call.root, keys=call.where)
    return first if any(_counts(first, rank, member) for member in missing) else wait


def _open_queued(rank: int, wait: Waiting, all_ranks: Mapping[int, Snapshot]) -> Open | None:
    """Return a wait for a call that all ranks have issued but some GPU never reaches."""
    assert wait.group is not None
    last = QueuedCall(rank, wait.group, wait.seq)
    # The message names the call that the GPU executes now. Those behind it are consequences.
    never = never_begin(last, all_ranks)
    current = current_call(last, never, all_ranks)
    stuck = [part for part in parts_of(current, all_ranks) if part in never and part.rank != rank]
    signature = called(all_ranks[rank], current.group, current.seq)
    if not stuck or signature is None:
        return None
    first = msgspec.structs.replace(
        wait,
        group=current.group,
        seq=current.seq,
        op=signature.op,
        root=signature.root,
        keys=signature.where,
    )
    return Open(
        rank=rank,
        wait=first,
        kind=DeadlockKind.CYCLE,
        ranks=tuple(sorted(part.rank for part in stuck)),
        other=_describe_behind(stuck[0], all_ranks),
    )


def _describe_behind(call: QueuedCall, all_ranks: Mapping[int, Snapshot]) -> str:
    """Describe the call before it in the queue: ``all_reduce #1 of group second before it``."""
    before = queued_behind(call, all_ranks)
    signature = before and called(all_ranks[before.rank], before.group, before.seq)
    if before is None or signature is None:
        return ""
    group = wait_words.group_name(before.group, all_ranks[before.rank].groups.get(before.group))
    return f"{title_of(signature.op)} #{before.seq}{wait_words.of_group(group)} before it"


def _counts(wait: Waiting, rank: int, member: int) -> bool:
    return needs(wait.op, wait.root, rank, member, in_queue=wait.kind is WaitKind.DEVICE)


# --- point-to-point calls


def _open_p2p(rank: int, wait: Waiting, all_ranks: Mapping[int, Snapshot]) -> Open | None:
    assert wait.group is not None
    if wait.kind is WaitKind.DEVICE and wait.direction is Direction.SEND:
        # NCCL completes a send without its receive while it has buffers.
        return None  # there may be buffer space for its data
    peers = [m for m in wait.group.ranks if m != rank] if wait.peer == ANY_SOURCE else [wait.peer]
    if any(peer not in all_ranks for peer in peers):
        return None
    if wait.direction is Direction.SEND:
        met = _received(all_ranks[wait.peer or 0], wait, rank)
    elif wait.peer == ANY_SOURCE:
        met = _sent_to_any(rank, wait, all_ranks)
    else:
        met = _counted(all_ranks[wait.peer or 0], wait, Direction.SEND, rank).issued
    if met >= wait.seq:
        return None
    ranks = tuple(peer for peer in peers if peer is not None)
    return Open(rank=rank, wait=wait, kind=DeadlockKind.POINT_TO_POINT, ranks=ranks)


def _counted(snapshot: Snapshot, wait: Waiting, direction: Direction, peer: int) -> Counts:
    assert wait.group is not None
    return snapshot.channels.get((wait.group, direction, peer, wait.tag), Counts(issued=0, done=0))


def _received(receiver: Snapshot, wait: Waiting, sender: int) -> int:
    """Return the number of receives that may have accepted data of this rank, including those from any rank."""
    # A receive from any rank may have met another sender. Counting it can only prevent a proof.
    peers = (sender, ANY_SOURCE)
    return sum(_counted(receiver, wait, Direction.RECEIVE, peer).issued for peer in peers)


def _sent_to_any(rank: int, wait: Waiting, all_ranks: Mapping[int, Snapshot]) -> int:
    """Return the number of sends that a receive from any rank may have accepted: all without another known receive."""
    others = _others(rank, all_ranks)
    sent = sum(_counted(all_ranks[other], wait, Direction.SEND, rank).issued for other in others)
    # `done` is a lower bound, so the difference is an upper bound, which can only prevent a proof.
    taken = sum(_counted(all_ranks[rank], wait, Direction.RECEIVE, other).done for other in others)
    return sent - taken


# --- the proof


def _proof(found: Sequence[Open], situation: Situation) -> Deadlock:
    return Deadlock(
        kind=_kind(found, situation.over),
        edges=tuple(_edge(each, situation) for each in found),
        finished=tuple(sorted(situation.over)),
        after_s=round(situation.now_s - situation.began_s, 3),
    )


def _kind(found: Sequence[Open], over: Mapping[int, Snapshot]) -> DeadlockKind:
    """Return the kind of the deadlock: a fault takes precedence over its consequences."""
    # A mismatch or another root makes ranks wait in later calls too, which must not be named as the reason.
    kinds = {each.kind for each in found}
    for kind in (DeadlockKind.MISMATCH, DeadlockKind.ROOTS):
        if kind in kinds:
            return kind
    named = (each for each in found if each.kind not in (DeadlockKind.STORE, DeadlockKind.ALONE))
    if any(rank in over for each in named for rank in each.ranks):
        return DeadlockKind.FINISHED
    for kind in (DeadlockKind.ALONE, DeadlockKind.STORE):
        if kind in kinds:
            return kind
    if kinds == {DeadlockKind.POINT_TO_POINT}:
        return DeadlockKind.POINT_TO_POINT
    return DeadlockKind.GROUPS if len({each.wait.group for each in found}) > 1 else DeadlockKind.CYCLE


def _edge(each: Open, situation: Situation) -> Edge:
    wait = each.wait
    state = situation.ranks[each.rank].groups.get(wait.group) if wait.group else None
    group = wait_words.group_name(wait.group, state) if wait.group else ""
    # The time is the rank's own word; a broken rank may have written any number.
    in_test = situation.began_s <= wait.since_s <= situation.now_s
    since_s = wait.since_s if in_test else situation.now_s
    return Edge(
        rank=each.rank,
        what=wait_words.wait_name(wait, group),
        where=wait.where,
        since_s=round(situation.now_s - since_s, 1),
        ranks=each.ranks,
        reason=_reason(each, situation),
        group=group,
        seq=wait.seq,
        op=title_of(wait.op),
    )


def _reason(each: Open, situation: Situation) -> str:
    """Describe the state of the awaited ranks, unless they simply wait as well."""
    if each.other:
        return f"which has called {each.other}"
    over = [rank for rank in each.ranks if rank in situation.over]
    if not over or each.kind is DeadlockKind.STORE:
        return ""
    if len(over) == 1 and over == list(each.ranks) and over[0] in situation.skipped:
        return f"which has skipped the test ({situation.skipped[over[0]]})"
    ended = "process has ended" if situation.dead.issuperset(over) else ""
    if over == list(each.ranks):
        verb = "have" if len(over) > 1 else "has"
        return f"whose {ended}" if ended else f"which {verb} finished the test"
    verb = "have" if len(over) > 1 else "has"
    return f"of which {rank_names(over)} {verb} {'ended' if ended else 'finished the test'}"
