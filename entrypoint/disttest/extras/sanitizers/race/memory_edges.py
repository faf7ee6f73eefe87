"""Edges of memory ranges, as one sorted list of alternating starts and ends. Pure functions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence


def edges_of(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Return the sorted edges of the union of some ranges.

    Args:
        ranges: pairs of the first address and the one behind the last.
    """
    edges: list[int] = []
    for start, end in sorted(ranges):
        if edges and start <= edges[-1]:
            edges[-1] = max(edges[-1], end)
        else:
            edges += (start, end)
    return edges


def is_between(edges: Sequence[int], address: int) -> bool:
    """Whether an address is in a range."""
    return bisect_right(edges, address) % 2 == 1
