"""A finding with the calls that it is about, and a few around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from disttest.model import RankCalls, SanitizerFinding, SeenCall
from disttest.sanitizers.order.exchanges import Events, Place
from disttest.sanitizers.order.order_kinds import Kind
from disttest.sanitizers.order.order_words import describe

NAME = "order"
_AROUND = 2
"""Calls shown before and after one that decides."""
_MOST_SHOWN = 12
"""Calls shown of one rank."""


class Advice(NamedTuple):
    """What a kind of finding leads to."""

    effect: str
    advice: str


def make_finding(
    kind: Kind, message: str, advice: Advice, events: Events, decisive: Mapping[int, Sequence[int]]
) -> SanitizerFinding:
    """A finding.

    Args:
        kind: of it.
        message: which rank does what, and where.
        advice: what comes of it, and what to do.
        events: of the test.
        decisive: rank -> indices of the calls that it is about.
    """
    return SanitizerFinding(
        sanitizer=NAME,
        kind=str(kind),
        message=message,
        effect=advice.effect,
        advice=advice.advice,
        orders=tuple(
            RankCalls(rank=rank, calls=tuple(_shown(events, rank, sorted(indices))))
            for rank, indices in sorted(decisive.items())
        ),
    )


def _shown(events: Events, rank: int, decisive: Sequence[int]) -> Iterator[SeenCall]:
    last = len(events.calls_of(rank)) - 1
    near = {
        index for each in decisive for index in range(max(0, each - _AROUND), min(last, each + _AROUND) + 1)
    }
    chosen = sorted([*decisive, *sorted(near - set(decisive))][:_MOST_SHOWN])
    for index in chosen:
        call = events.at(Place(rank, index))
        yield SeenCall(
            what=f"{describe(call)}, group {call.group.title}",
            file=call.file,
            line=call.line,
            decides=index in decisive,
        )
