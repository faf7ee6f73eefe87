"""The table of calls of all ranks: a row for each collective, and the one at which the ranks diverge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from disttest.model import Collective, RankRecord, TestResult, rank_name
from disttest.reports.text import one_line
from disttest.results.narrative import how_ended

MAX_ROWS = 60
MOST_CALLS = 2_000
"""Number of calls of one rank that are compared; torch's recorder keeps as many by default."""
_Key = tuple[str, int]


def collective_table(result: TestResult) -> dict[str, Any] | None:
    """Return names of ranks and rows of cells; None if no rank's recorder was read.

    The last :data:`MAX_ROWS` collectives, in the order in which they were first called.
    """
    if not any(rank.collectives for rank in result.ranks):
        return None
    # A hanging rank was asked, too, and an empty column for it is informative. The same holds for the culprit.
    ranks = [rank for rank in result.ranks if _was_asked(rank) or rank.rank == result.culprit]
    calls = [
        {(call.group, call.seq): call for call in rank.collectives[-MOST_CALLS:] if not call.p2p}
        for rank in ranks
        if _was_asked(rank)
    ]
    first_s: dict[_Key, float] = {}
    for mine in calls:
        for key, call in mine.items():
            first_s[key] = min(call.at_s, first_s.get(key, call.at_s))
    order = sorted(first_s, key=lambda key: (first_s[key], key))
    parting = next((key for key in order if _parts(key, calls)), None)
    return {
        "ranks": [rank_name(rank.rank) for rank in ranks],
        "rows": [
            {
                "name": f"{one_line(key[0], 60)} #{key[1]}",
                "parts": key == parting,
                "cells": [*_cells(key, ranks, calls, result.started_at_s)],
            }
            for key in order[-MAX_ROWS:]
        ],
    }


def _was_asked(rank: RankRecord) -> bool:
    return bool(rank.collectives) or rank.hung


def _cells(
    key: _Key, ranks: Sequence[RankRecord], calls: Sequence[dict[_Key, Collective]], started_at_s: float
) -> Iterator[dict[str, Any] | None]:
    described = iter(calls)
    for rank in ranks:
        if _was_asked(rank):
            yield _cell(next(described).get(key), started_at_s)
        else:
            yield {"unasked": how_ended(rank)}


def ticks(rank: RankRecord, started_at_s: float) -> list[tuple[float, bool]]:
    """Return when a rank called each collective, in seconds from the start, and whether it was complete."""
    return [(round(max(0.0, call.at_s - started_at_s), 4), call.done) for call in rank.collectives[-200:]]


def _parts(key: _Key, calls: Sequence[dict[_Key, Collective]]) -> bool:
    """Return whether the ranks diverge here: different operations, a missing rank, or a call that was not completed."""
    here = [mine[key] for mine in calls if key in mine]
    if len({call.op for call in here}) > 1 or not all(call.done for call in here):
        return True
    # A rank past this number has issued it: its recorder keeps only the last calls.
    return any(key not in mine and not _is_past(key, mine) for mine in calls)


def _is_past(key: _Key, mine: dict[_Key, Collective]) -> bool:
    return any(group == key[0] and seq > key[1] for group, seq in mine)


def _cell(call: Collective | None, started_at_s: float) -> dict[str, Any] | None:
    if call is None:
        return None
    return {
        "op": one_line(call.op, 60),
        "inputs": one_line(call.inputs, 80),
        "where": one_line(call.where, 120),
        "done": call.done,
        "at": round(max(0.0, call.at_s - started_at_s), 4),
    }
