"""Mismatching calls, found on the boards after a backend aborted a rank for the size of a tensor. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from disttest.model import rank_names
from disttest.observe.operations import title_of
from disttest.plugins.deadlock import wait_words
from disttest.plugins.deadlock.layout import Direction
from disttest.plugins.deadlock.snapshot import GroupKey, IssuedCollective, Snapshot

_UNEVEN = frozenset({"alltoall", "alltoall_base"})
"""Collectives in which ranks may pass different tensors."""
_EVEN = frozenset(
    {
        *("allreduce", "allreduce_coalesced", "broadcast", "reduce"),
        *("allgather_base", "allgather_into_tensor_coalesced", "allgather_coalesced"),
        *("reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    }
)
"""Collectives in which all ranks must pass tensors of the same size."""
_EVEN_IN_GLOO = frozenset({"allgather", "gather", "reduce_scatter"})
"""Collectives that take a list of tensors."""
_TENSOR = re.compile(r"(\w+)\[([\d, ]*)\]")


def describe_differing_calls(ranks: Mapping[int, Snapshot], aborted: int) -> str:
    """Describe a mismatch: ``ranks disagree at collective #1 of group default: rank 0 called all_reduce of float32[4],
    rank 1 called …``.

    Args:
        ranks: the board of each rank of the world.
        aborted: the rank that died of the mismatch.

    Returns:
        The first collective of the aborted rank in which other ranks called another operation or passed other
            tensors; otherwise the message that did not fit. Empty if neither is known.
    """
    found = next(_differing(ranks, aborted), None) or _uneven(ranks, aborted)
    if found is None:
        return _describe_message(ranks, aborted)
    group, seq, called = found
    name = wait_words.group_name(group, ranks[aborted].groups[group])
    return f"ranks disagree at collective #{seq} of group {name}: {_describe(called)}"


def waits_in_differing_call(ranks: Mapping[int, Snapshot], crashed: int) -> bool:
    """Return whether a crashed rank was in a collective in which other ranks passed different tensors.

    Args:
        ranks: the board of each rank of the world.
        crashed: the rank that died.
    """
    inside = {(wait.group, wait.seq) for wait in ranks[crashed].waits if wait.peer is None}
    return any((group, seq) in inside for group, seq, _ in _differing(ranks, crashed))


def find_odd_rank(ranks: Mapping[int, Snapshot], aborted: int) -> int | None:
    """Return the one rank whose call differs from that of all others; gloo may have aborted one of these others.

    Args:
        ranks: the board of each rank of the world.
        aborted: the rank that died of the mismatch.
    """
    for _, _, called in _differing(ranks, aborted):
        by_call: dict[tuple[str, str], list[int]] = {}
        for rank, call in called.items():
            by_call.setdefault((call.op, call.tensors), []).append(rank)
        # Of two ranks each is alone, so neither is the odd one.
        alone = [ranks_[0] for ranks_ in by_call.values() if len(ranks_) == 1]
        return alone[0] if len(by_call) == 2 and len(alone) == 1 else None
    return None


def have_other_sizes(mine: IssuedCollective, theirs: IssuedCollective, *, in_queue: bool) -> bool:
    """Return whether two parts of one collective illegally pass different numbers of bytes.

    Args:
        mine: a rank's part.
        theirs: the part of another rank.
        in_queue: whether the calls are in the queues of GPUs; NCCL sends parts of different sizes separately.
    """
    if (
        not mine.tensors
        or not theirs.tensors
        or mine.op not in (_EVEN if in_queue else _EVEN | _EVEN_IN_GLOO)
    ):
        return False
    return _sizes(mine.tensors) != _sizes(theirs.tensors)


def _sizes(tensors: str) -> list[int]:
    """Return the size of each tensor in bits: shapes may differ, and gloo ignores types."""
    return [_size(*tensor) for tensor in _TENSOR.findall(tensors)]


def _size(dtype: str, shape: str) -> int:
    # float32, complex64, float8_e4m3fn: the first number is the size. bool has none, and takes a byte.
    bits = re.search(r"\d+", dtype)
    numel = math.prod(int(length) for length in shape.split(",") if length.strip())
    return numel * (int(bits[0]) if bits else 8)


def _differing(
    ranks: Mapping[int, Snapshot], aborted: int
) -> Iterator[tuple[GroupKey, int, Mapping[int, IssuedCollective]]]:
    """Yield group, number and calls of the aborted rank's collectives that differ between ranks."""
    for group, state in ranks[aborted].groups.items():
        for seq in sorted(state.calls):
            called = dict(_called(ranks, group, seq))
            if aborted in called and _differ(called):
                yield group, seq, called


def _uneven(
    ranks: Mapping[int, Snapshot], aborted: int
) -> tuple[GroupKey, int, Mapping[int, IssuedCollective]] | None:
    """Return the last collective of the aborted rank if its ranks passed different tensors legally; None if there is
    none.

    Their sizes may still match, so no rank is at fault.
    """
    for group, state in ranks[aborted].groups.items():
        last = max(state.calls, default=0)
        called = dict(_called(ranks, group, last))
        if (
            aborted in called
            and called[aborted].op in _UNEVEN
            and len({each.tensors for each in called.values()}) > 1
        ):
            return group, last, called
    return None


def _describe_message(ranks: Mapping[int, Snapshot], aborted: int) -> str:
    """Describe a mismatch: ``ranks disagree at recv #1 of rank 1: rank 0 sent …, rank 1 receives …``."""
    for wait in ranks[aborted].waits:
        if wait.group is None or wait.peer is None or wait.peer not in ranks:
            continue
        if wait.direction is not Direction.RECEIVE:
            continue
        mine = ranks[aborted].channels.get((wait.group, Direction.RECEIVE, wait.peer, wait.tag))
        theirs = ranks[wait.peer].channels.get((wait.group, Direction.SEND, aborted, wait.tag))
        if (
            mine
            and theirs
            and mine.tensors
            and theirs.tensors
            and _sizes(mine.tensors) != _sizes(theirs.tensors)
        ):
            sent = f"rank {wait.peer} sent {theirs.tensors}{_at(theirs.where)}"
            received = f"rank {aborted} receives {mine.tensors}{_at(mine.where)}"
            return f"ranks disagree at recv #{wait.seq} of rank {aborted}: {sent}, {received}"
    return ""


def _called(
    ranks: Mapping[int, Snapshot], group: GroupKey, seq: int
) -> Iterator[tuple[int, IssuedCollective]]:
    for rank in group.ranks:
        state = ranks[rank].groups.get(group) if rank in ranks else None
        signature = state.calls.get(seq) if state else None
        if signature is not None and signature.op and signature.tensors:
            yield rank, signature


def _differ(called: Mapping[int, IssuedCollective]) -> bool:
    calls = {signature.op for signature in called.values()}
    tensors = {signature.tensors for signature in called.values()}
    return len(calls) > 1 or (len(tensors) > 1 and not calls & _UNEVEN)


def _describe(called: Mapping[int, IssuedCollective]) -> str:
    """Describe the calls: ``ranks 0, 2 called all_reduce of float32[4] at a.py:5, rank 1 called …``."""
    by_call: dict[str, list[int]] = {}
    for rank, signature in called.items():
        call = f"{title_of(signature.op)} of {signature.tensors}{_at(signature.where)}"
        by_call.setdefault(call, []).append(rank)
    return ", ".join(f"{rank_names(who)} called {call}" for call, who in by_call.items())


def _at(where: str) -> str:
    return f" at {where}" if where else ""
