"""Findings of the sanitizer ``order``: kinds, descriptions of calls and ranks, and the calls around a finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from disttest.extras.sanitizers.order.exchanges import Exchanges, StreamPosition
from disttest.extras.sanitizers.order.stream import CallSignature
from disttest.extras.sanitizers.sanitizer import Consequence
from disttest.model import FROM_ROOT, PluginFinding, RankCalls, SeenCall
from disttest.observe import ANY_SOURCE
from disttest.observe.operations import title_of


class OrderFindingKind(StrEnum):
    """Kind of a finding; the value is its word in results and reports."""

    MISMATCH = "mismatch"
    """Ranks make different calls at the same number of a group, or the same call with another reduce operation, dtype,
    shape or root; or a send and its receive differ in dtype or size."""
    EXTRA = "extra"
    """A collective that not all ranks of its group issue, or a send or receive without its counterpart."""
    GROUP_ORDER = "group-order"
    """Ranks issue collectives of two or more groups in orders that wait for each other."""
    P2P_ORDER = "p2p-order"
    """Ranks issue a point-to-point call and a collective, or calls with several tags, in opposite orders."""
    P2P_CYCLE = "p2p-cycle"
    """Each rank begins with a send (or each with a receive) whose counterpart is behind another one."""
    NEVER_WAITED = "never-waited"
    """An asynchronous call whose handle is never waited for."""


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


NAME = "order"
_AROUND = 2
"""Calls shown before and after a decisive one."""
_MOST_SHOWN = 12
"""Calls shown of one rank."""


def make_finding(
    kind: OrderFindingKind,
    message: str,
    consequence: Consequence,
    exchanges: Exchanges,
    decisive: Mapping[int, Sequence[int]],
) -> PluginFinding:
    """Make a finding.

    Args:
        kind: kind of the finding.
        message: the ranks, their calls and the lines.
        consequence: effect and advice.
        exchanges: calls of the test.
        decisive: rank -> indices of the calls that the finding is about.
    """
    return PluginFinding(
        finder=NAME,
        kind=str(kind),
        message=message,
        effect=consequence.effect,
        advice=consequence.advice,
        orders=tuple(
            RankCalls(rank=rank, calls=tuple(_shown(exchanges, rank, sorted(indices))))
            for rank, indices in sorted(decisive.items())
        ),
    )


def _shown(exchanges: Exchanges, rank: int, decisive: Sequence[int]) -> Iterator[SeenCall]:
    last = len(exchanges.calls_of(rank)) - 1
    near = {
        index for each in decisive for index in range(max(0, each - _AROUND), min(last, each + _AROUND) + 1)
    }
    # The decisive calls come first, so that the limit cuts off only their neighbours.
    chosen = sorted([*decisive, *sorted(near - set(decisive))][:_MOST_SHOWN])
    for index in chosen:
        call = exchanges.at(StreamPosition(rank, index))
        yield SeenCall(
            what=f"{describe(call)}, group {call.group.title}",
            file=call.file,
            line=call.line,
            decides=index in decisive,
        )
