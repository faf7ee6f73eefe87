"""Simulation of a scheduler: batches and their durations are the input, the makespan is the output. No time passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush

from disttest.model import Batch, Frozen, Slot
from disttest.planning.schedule import BatchScheduler, Scheduler, Start


class VirtualClock:
    """A clock that is set explicitly."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Return the time that it was set to, in seconds."""
        return self.now_s


class Placement(Frozen):
    """A batch in a simulated run."""

    start: Start
    started_at_s: float
    ended_at_s: float


class Simulation(Frozen):
    """A simulated run."""

    makespan_s: float
    placements: tuple[Placement, ...]
    stranded: tuple[Batch, ...]


def simulate(
    batches: Iterable[Batch],
    slots: Iterable[Slot],
    *,
    durations_s: Mapping[str, float] | None = None,
    scheduler: Callable[..., Scheduler] = BatchScheduler,
) -> Simulation:
    """Run batches on slots under a scheduler, on a virtual clock."""
    # ``durations_s`` (batch id, mapped to seconds) gives their actual durations; by default they equal the expected
    # ones.
    clock = VirtualClock()
    chosen = scheduler(slots, clock=clock)
    for batch in batches:
        chosen.submit(batch)
    placements: list[Placement] = []
    ends: list[tuple[float, int]] = []
    while True:
        for start in chosen.due():
            batch = start.batch
            takes_s = durations_s[batch.batch_id] if durations_s else batch.expected_s
            heappush(ends, (clock.now_s + takes_s, len(placements)))
            placements.append(
                Placement(start=start, started_at_s=clock.now_s, ended_at_s=clock.now_s + takes_s)
            )
        if not ends:
            break
        clock.now_s = ends[0][0]
        # All ends of one moment, before the next decision: otherwise it would see slots as taken that are
        # free.
        while ends and ends[0][0] <= clock.now_s:
            chosen.ended(placements[heappop(ends)[1]].start.batch.batch_id)
    return Simulation(makespan_s=clock.now_s, placements=tuple(placements), stranded=chosen.stranded())


def lower_bound_s(work: Iterable[tuple[float, int]], slots: int) -> float:
    """Return the lower bound of the makespan of work, given as (seconds, width) pairs, on a number of slots."""
    # It is the larger of all slot-seconds over the slots, and the longest piece.
    total_s = longest_s = 0.0
    for seconds, width in work:
        total_s += seconds * min(width, slots)
        longest_s = max(longest_s, seconds)
    return max(total_s / slots, longest_s) if slots else 0.0


def plain_slots(count: int, device: str = "cpu") -> tuple[Slot, ...]:
    """Return slots for a simulation, all equally near each other."""
    return tuple(Slot(name=f"{device}:{index}", device=device, index=index) for index in range(count))
