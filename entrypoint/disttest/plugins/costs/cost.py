"""Cost of a run: slot-minutes used, lost to start-up and idle, and the makespan compared with its lower bound. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapreplace

from msgspec import structs

from disttest.model import Batch, Frozen, Isolation, WorldShape
from disttest.planning.simulate import lower_bound_s, plain_slots, simulate
from disttest.plugins.costs.makespan import (
    are_gpus,
    beside_bound_s,
    counted_worlds,
    least_of_part_s,
    parts_of,
    work_of,
)
from disttest.results.fold import RunResult

SIMULATED_WORLDS = 2_000
"""Up to this many worlds, one slot more or fewer is simulated; above, its effect is estimated from the bound."""


SIMULATED_SLOTS = 10_000
"""The same limit for slots."""


class Cost(Frozen):
    """Cost of a run. Times are in seconds; a slot-second is one slot held or offered for a second."""

    unit: str
    """Name of a slot: ``GPU`` or ``CPU slot``."""
    slots: int
    used_slot_s: float
    """Slots multiplied by the time that tests ran on them."""
    startup_slot_s: float
    """Slots held by worlds while no test ran: starting, restoring state, ending."""
    idle_slot_s: float
    """Slots that no world held."""
    makespan_s: float
    lower_bound_s: float
    """No schedule of these worlds on these slots can be shorter."""
    runners: str
    """Unit of the estimates with one more or one fewer: a slot, or ``runner`` for merged shards."""
    with_one_more_s: float | None
    with_one_fewer_s: float | None
    """Expected makespans; None if unknown: no slot would remain, or a world would not fit."""

    @property
    def used_minutes(self) -> float:
        """Slot-minutes in tests."""
        return self.used_slot_s / 60

    @property
    def startup_minutes(self) -> float:
        """Slot-minutes lost to starting and ending worlds."""
        return self.startup_slot_s / 60

    @property
    def idle_minutes(self) -> float:
        """Unused slot-minutes."""
        return self.idle_slot_s / 60

    @property
    def idle_share(self) -> float:
        """Idle slot-time as a share of all slot-time, 0 to 1."""
        total_s = self.used_slot_s + self.startup_slot_s + self.idle_slot_s
        return self.idle_slot_s / total_s if total_s else 0.0


def costs_of(run: RunResult) -> tuple[Cost, ...]:
    """Compute the cost for each kind of slot; there are two if shards with and without GPUs were merged."""
    parts = parts_of(run)
    if len(parts) == 1:
        return (cost_of(run),)
    costs = map(cost_of, parts)
    return tuple(structs.replace(cost, runners=f"{cost.unit.split()[0]} runner") for cost in costs)


def cost_of(run: RunResult) -> Cost:
    """Compute the cost of a run, or of merged shards of one kind; a shard's slots count while it ran.

    If worlds used GPUs and others the CPU, only GPU time is counted, but both enter the lower bound.
    """
    in_tests_s: dict[str, float] = {}
    for test in run.tests:
        for attempt in test.attempts:
            if attempt.world_id:
                # Retries count too: they used the slots.
                in_tests_s[attempt.world_id] = in_tests_s.get(attempt.world_id, 0.0) + attempt.duration_s
    counted = counted_worlds(run)
    worlds = work_of(counted, run)
    beside_s = beside_bound_s(run)
    held_s = sum(seconds * width for seconds, width in worlds)
    used_s = sum(
        min(in_tests_s.get(world.world_id, 0.0), seconds) * width
        for world, (seconds, width) in zip(counted, worlds, strict=True)
    )
    makespan_s, offered_s = _window(run)
    more_s, fewer_s = _what_if(run, worlds, beside_s, makespan_s)
    unit = "GPU" if are_gpus(run.cpu_slots, run.worlds) else "CPU slot"
    return Cost(
        unit=unit,
        slots=run.slots,
        used_slot_s=used_s,
        startup_slot_s=held_s - used_s,
        idle_slot_s=max(0.0, offered_s - held_s),
        makespan_s=makespan_s,
        lower_bound_s=least_of_part_s(run),
        runners="runner" if run.shards else unit,
        with_one_more_s=more_s,
        with_one_fewer_s=fewer_s,
    )


def _window(run: RunResult) -> tuple[float, float]:
    """Return makespan and offered slot-seconds; a shard offers nothing before it starts."""
    if not run.shards:
        makespan_s = _makespan_s(run)
        return makespan_s, run.slots * makespan_s
    lengths = [(max(0.0, shard.ended_at_s - shard.started_at_s), shard.slots) for shard in run.shards]
    return max(seconds for seconds, _ in lengths), sum(seconds * slots for seconds, slots in lengths)


def _makespan_s(run: RunResult) -> float:
    """Time from the start of the run to the end of its last world or test; the end of pytest takes no slots."""
    ends = [run.started_at_s]
    ends += [run.ended_at_s if world.ended_at_s is None else world.ended_at_s for world in run.worlds]
    ends += [test.final.started_at_s + test.final.duration_s for test in run.tests]
    return max(ends) - run.started_at_s


def _what_if(
    run: RunResult, worlds: Sequence[tuple[float, int]], beside_s: float, makespan_s: float
) -> tuple[float | None, float | None]:
    """Estimate the makespans with one more and one fewer: the measured one, shifted by the change of the estimate."""
    if not worlds:
        return None, None
    now, estimate = _on_runners(run, worlds) if run.shards else _on_slots(run, worlds)
    base_s = max(estimate(now), beside_s)
    widest = 0 if run.shards else max(width for _, width in worlds)
    shifted = [
        max(0.0, makespan_s + max(estimate(count), beside_s) - base_s) if count >= max(1, widest) else None
        for count in (now + 1, now - 1)
    ]
    return shifted[0], shifted[1]


def _on_slots(run: RunResult, worlds: Sequence[tuple[float, int]]) -> tuple[int, Callable[[int], float]]:
    # More slots than all worlds could hold at the same time change nothing.
    most = min(run.slots, sum(width for _, width in worlds)) + 1
    if len(worlds) > SIMULATED_WORLDS or most > SIMULATED_SLOTS:
        return run.slots, lambda slots: lower_bound_s(worlds, slots)
    batches = [
        Batch(
            batch_id=str(index),
            nodeids=(),
            shape=WorldShape(size=max(1, width), backend=""),
            isolation=Isolation.FRESH,
            expected_s=seconds,
        )
        for index, (seconds, width) in enumerate(worlds)
    ]
    return run.slots, lambda slots: simulate(batches, plain_slots(min(slots, most))).makespan_s


def _on_runners(run: RunResult, worlds: Sequence[tuple[float, int]]) -> tuple[int, Callable[[int], float]]:
    slots = max(1, round(run.slots / len(run.shards)))
    ordered = sorted(worlds, reverse=True)

    def estimate(runners: int) -> float:
        loads = [0.0] * runners
        for seconds, width in ordered:
            # Longest first onto the runner with the least work: at most a third above the optimum.
            heapreplace(loads, loads[0] + seconds * min(width, slots) / slots)
        return max(*loads, ordered[0][0], 0.0)

    return len(run.shards), estimate
