"""The choice among free GPUs. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from disttest.host.devices.machine import Gpu
from disttest.model import Slot

_NEAR = {"internal": 5, "single": 4, "multiple": 3, "hostbridge": 2, "node": 1}

_MOST_SETS = 20_000
"""Number of sets up to which all are compared: C(16, 8) = 12,870 still are."""


def choose_slots(free: Sequence[tuple[Slot, Gpu]], count: int) -> tuple[Slot, ...]:
    """Choose the best ``count`` of the free slots: NVLink peers first, then the nearest on PCIe."""
    # Among equals, it prefers the set that separates the fewest NVLinks from the GPUs that stay free, so that a
    # request for one GPU does not break a bridged pair; then the lowest numbers.
    if math.comb(len(free), count) > _MOST_SETS:
        return _grow(free, count)
    best = max(itertools.combinations(free, count), key=lambda chosen: _worth(chosen, free))
    return tuple(slot for slot, _ in best)


def _worth(chosen: Sequence[tuple[Slot, Gpu]], free: Sequence[tuple[Slot, Gpu]]) -> tuple[float, ...]:
    inside = [gpu for _, gpu in chosen]
    outside = [gpu for slot, gpu in free if all(slot != taken for taken, _ in chosen)]
    pairs = list(itertools.combinations(inside, 2))
    links = [_nvlinks(first, second) for first, second in pairs]
    return (
        # A ring is as fast as its slowest link, so the minimum counts before the sum.
        float(min(links, default=0)),
        float(sum(links)),
        float(sum(_nearness(first, second) for first, second in pairs)),
        -float(sum(_nvlinks(first, second) for first in inside for second in outside)),
        *(-float(gpu.index) for gpu in inside),
    )


def _grow(free: Sequence[tuple[Slot, Gpu]], count: int) -> tuple[Slot, ...]:
    """From each start, repeatedly add the slot with the most links to the chosen ones; return the best result."""
    grown = [_grow_from(start, free, count) for start in free]
    best = max(grown, key=lambda chosen: _worth(chosen, free))
    return tuple(slot for slot, _ in sorted(best, key=lambda entry: entry[0].index))


def _grow_from(
    start: tuple[Slot, Gpu], free: Sequence[tuple[Slot, Gpu]], count: int
) -> list[tuple[Slot, Gpu]]:
    chosen = [start]
    while len(chosen) < count:
        rest = [entry for entry in free if entry not in chosen]
        chosen.append(max(rest, key=lambda entry: sum(_nvlinks(entry[1], gpu) for _, gpu in chosen)))
    return chosen


def _nvlinks(first: Gpu, second: Gpu) -> int:
    return next((peer.nvlinks for peer in first.peers if peer.index == second.index), 0)


def _nearness(first: Gpu, second: Gpu) -> int:
    path = next((peer.path for peer in first.peers if peer.index == second.index), "")
    return _NEAR.get(path, 0)
