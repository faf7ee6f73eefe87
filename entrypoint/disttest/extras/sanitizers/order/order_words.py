"""Words of findings about order: descriptions of calls and ranks."""

from __future__ import annotations

from disttest.extras.sanitizers.order.stream import CallSignature
from disttest.model import FROM_ROOT
from disttest.observe import ANY_SOURCE
from disttest.observe.operations import title_of


def describe(call: CallSignature) -> str:
    """Format ``all_reduce SUM of float32[4]`` or ``send to rank 1 of float32[4]``."""
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
    """Format ``all_reduce`` or ``send to rank 1``: the call without its tensors."""
    return " ".join([title_of(call.op), *_ends(call)])


def at(call: CallSignature) -> str:
    """Format `` at test_step.py:39``; empty if the line is unknown."""
    return f" at {call.where}" if call.where else ""
