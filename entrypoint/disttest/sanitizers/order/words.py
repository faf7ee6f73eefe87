"""How findings about order are told: the calls, the ranks, and for each kind what comes of it and what to do."""

from __future__ import annotations

from collections.abc import Collection

from disttest.observe import ANY_SOURCE
from disttest.sanitizers.order.stream import Signature

TITLES = {
    "allgather": "all_gather",
    "allgather_base": "all_gather_into_tensor",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "recv_any_source": "recv",
    "reduce_scatter_base": "reduce_scatter_tensor",
}
_FROM_ROOT = frozenset({"broadcast", "scatter"})


def describe(call: Signature) -> str:
    """``all_reduce SUM of float32[4]``, ``send to rank 1 of float32[4]``."""
    title = TITLES.get(call.op, call.op)
    parts = [title, *([call.reduce_op] if call.reduce_op else []), *_ends(call)]
    tensors = call.inputs or call.outputs
    if tensors:
        more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        parts.append(f"of {tensors[0]}{more}")
    return " ".join(parts)


def _ends(call: Signature) -> list[str]:
    if call.is_p2p:
        who = "any rank" if call.peer == ANY_SOURCE else f"rank {call.peer}"
        tag = [f"with tag {call.tag}"] if call.tag else []
        return [f"to {who}" if call.is_send else f"from {who}", *tag]
    if call.root is not None:
        return [f"{'from' if call.op in _FROM_ROOT else 'to'} rank {call.root}"]
    return []


def title(call: Signature) -> str:
    """``all_reduce``, ``send to rank 1``: what it is, without its tensors."""
    return " ".join([TITLES.get(call.op, call.op), *_ends(call)])


def at(call: Signature) -> str:
    """`` at test_step.py:39``, or nothing."""
    return f" at {call.where}" if call.where else ""


def names(ranks: Collection[int]) -> str:
    """``rank 2``, ``ranks 0,1``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {','.join(map(str, sorted(ranks)))}"
