"""Make findings with the calls that they are about, and a few calls around those."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from disttest.extras.sanitizers.order.exchanges import Exchanges, StreamPosition
from disttest.extras.sanitizers.order.order_kinds import OrderFindingKind
from disttest.extras.sanitizers.order.order_words import describe
from disttest.extras.sanitizers.sanitizer import Consequence
from disttest.model import PluginFinding, RankCalls, SeenCall

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
    chosen = sorted([*decisive, *sorted(near - set(decisive))][:_MOST_SHOWN])
    for index in chosen:
        call = exchanges.at(StreamPosition(rank, index))
        yield SeenCall(
            what=f"{describe(call)}, group {call.group.title}",
            file=call.file,
            line=call.line,
            decides=index in decisive,
        )
