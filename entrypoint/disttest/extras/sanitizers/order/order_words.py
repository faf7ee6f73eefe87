"""How findings about order are told: the calls, the ranks, and for each kind what comes of it and what to do."""

from __future__ import annotations

from disttest.extras.sanitizers.order.stream import CallSignature
from disttest.model import FROM_ROOT
from disttest.observe import ANY_SOURCE
from disttest.observe.operations import title_of


def describe(call: CallSignature) -> str:
    """``all_reduce SUM of float32[4]``, ``send to rank 1 of float32[4]``."""
    title = title_of(call.op)
    parts = [title, *([call.reduce_op] if call.reduce_op else []), *_ends(call)]
    tensors = call.inputs or call.outputs
    if tensors:
        more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        parts.append(f"of {tensors[0]}{more}")
    for way, split in zip(("taking", "giving"), call.splits, strict=True):
        parts += [f"{way} {','.join(map(str, split))}"] if split else []
    return " ".join(parts)


def _ends(call: CallSignature) -> list[str]:
    if call.is_p2p:
        who = "any rank" if call.peer == ANY_SOURCE else f"rank {call.peer}"
        tag = [f"with tag {call.tag}"] if call.tag else []
        return [f"to {who}" if call.is_send else f"from {who}", *tag]
    if call.root is not None:
        return [f"{'from' if call.op in FROM_ROOT else 'to'} rank {call.root}"]
    return []


def title(call: CallSignature) -> str:
    """``all_reduce``, ``send to rank 1``: what it is, without its tensors."""
    return " ".join([title_of(call.op), *_ends(call)])


def at(call: CallSignature) -> str:
    """`` at test_step.py:39``, or nothing."""
    return f" at {call.where}" if call.where else ""
