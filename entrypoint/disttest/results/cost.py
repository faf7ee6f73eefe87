"""What a run cost: slot-minutes used, lost to start-up and idle, and how near the makespan came to its bound. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapreplace

from msgspec import structs

from disttest.model import Batch, Frozen, Isolation, ShardSpan, WorldShape
from disttest.planning.simulate import lower_bound_s, plain_slots, simulate
from disttest.results.fold import RunResult, WorldSpan

SIMULATED_WORLDS = 2_000
"""Up to so many worlds the effect of one slot more or fewer is simulated; above, it follows from the bound."""


SIMULATED_SLOTS = 10_000
"""The same for slots."""


class Cost(Frozen):
    """What a run cost. Times are seconds; a slot-second is one slot held or offered for a second."""

    unit: str
    """What a slot is: ``GPU`` or ``CPU slot``."""
    slots: int
    used_slot_s: float
    """Slots times the time that tests ran on them."""
    startup_slot_s: float
    """Slots held by worlds while no test ran: starting, cleaning between tests, ending."""
    idle_slot_s: float
    """Slots that no world held."""
    makespan_s: float
    lower_bound_s: float
    """No schedule of these worlds on these slots can be shorter."""
    runners: str
    """What one more or fewer is of: the unit, or ``runner`` for merged shards."""
    with_one_more_s: float | None
    with_one_fewer_s: float | None
    """Expected makespans; None where it cannot be said (nothing would be left, or a world would no longer fit)."""

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
        """Slot-minutes that nobody used."""
        return self.idle_slot_s / 60

    @property
    def idle_share(self) -> float:
        """Idle slot-time over all slot-time, 0 to 1."""
        total_s = self.used_slot_s + self.startup_slot_s + self.idle_slot_s
        return self.idle_slot_s / total_s if total_s else 0.0


def costs_of(run: RunResult) -> tuple[Cost, ...]:
    """The cost of a run for each kind of slot. There are two where shards with and without GPUs were merged."""
    parts = _parts(run)
    if len(parts) == 1:
        return (cost_of(run),)
    costs = map(cost_of, parts)
    return tuple(structs.replace(cost, runners=f"{cost.unit.split()[0]} runner") for cost in costs)


def cost_of(run: RunResult) -> Cost:
    """Work out the cost of a run, or of merged shards of one kind; each shard's slots count while that shard ran.

    Where worlds computed on GPUs and beside them on the CPU, only GPU time is counted; both have a say in the bound.
    """
    in_tests_s: dict[str, float] = {}
    for test in run.tests:
        for attempt in test.attempts:
            if attempt.world_id:
                in_tests_s[attempt.world_id] = in_tests_s.get(attempt.world_id, 0.0) + attempt.duration_s
    counted = _counted(run)
    worlds = _work(counted, run)
    beside_s = _beside_bound_s(run)
    held_s = sum(seconds * width for seconds, width in worlds)
    used_s = sum(
        min(in_tests_s.get(world.world_id, 0.0), seconds) * width
        for world, (seconds, width) in zip(counted, worlds, strict=True)
    )
    makespan_s, offered_s = _window(run)
    more_s, fewer_s = _what_if(run, worlds, beside_s, makespan_s)
    unit = "GPU" if _on_gpus(run.cpu_slots, run.worlds) else "CPU slot"
    return Cost(
        unit=unit,
        slots=run.slots,
        used_slot_s=used_s,
        startup_slot_s=held_s - used_s,
        idle_slot_s=max(0.0, offered_s - held_s),
        makespan_s=makespan_s,
        lower_bound_s=_least_makespan_s(run),
        runners="runner" if run.shards else unit,
        with_one_more_s=more_s,
        with_one_fewer_s=fewer_s,
    )


def least_makespan_s(run: RunResult) -> float:
    """The time under which no schedule of these worlds and ordinary tests can be, each kind of slot by itself."""
    return max(map(_least_makespan_s, _parts(run)))


def _parts(run: RunResult) -> list[RunResult]:
    """The run, or its shards with GPUs and those without."""
    worlds: dict[str, list[WorldSpan]] = {}
    for world in run.worlds if run.shards else ():
        worlds.setdefault(world.world_id.partition("/")[0], []).append(world)
    kinds: dict[bool, list[ShardSpan]] = {True: [], False: []}
    for shard in run.shards:
        kinds[_on_gpus(shard.cpu_slots, worlds.get(shard.label, ()))].append(shard)
    if not all(kinds.values()):
        return [run]
    return [
        structs.replace(
            run,
            shards=tuple(shards),
            worlds=tuple(world for shard in shards for world in worlds.get(shard.label, ())),
            slots=sum(shard.slots for shard in shards),
            cpu_slots=sum(shard.cpu_slots for shard in shards),
        )
        for shards in kinds.values()
    ]


def _on_gpus(cpu_slots: int, worlds: Iterable[WorldSpan]) -> bool:
    """Whether slots are GPUs. A machine with GPUs may have been told to leave them alone."""
    return bool(cpu_slots) or any(world.on_gpus for world in worlds)


def _least_makespan_s(run: RunResult) -> float:
    ordinary_s = 0.0
    if not run.shards:
        attempts = (attempt for test in run.tests for attempt in test.attempts)
        ordinary_s = sum(attempt.duration_s for attempt in attempts if not attempt.world_id)
    return max(lower_bound_s(_work(_counted(run), run), run.slots), _beside_bound_s(run), ordinary_s)


def _counted(run: RunResult) -> list[WorldSpan]:
    """The worlds whose slots are what the run costs."""
    return [world for world in run.worlds if not run.is_beside(world)]


def _beside_bound_s(run: RunResult) -> float:
    """The time that the worlds on the CPU beside GPUs need at least."""
    return lower_bound_s(_work(filter(run.is_beside, run.worlds), run), run.cpu_slots)


def _work(worlds: Iterable[WorldSpan], run: RunResult) -> list[tuple[float, int]]:
    """Seconds and width of each world."""
    return [(_length_s(world, run), len(world.slots)) for world in worlds]


def _length_s(world: WorldSpan, run: RunResult) -> float:
    ended_at_s = run.ended_at_s if world.ended_at_s is None else world.ended_at_s
    return max(0.0, ended_at_s - world.started_at_s)


def _window(run: RunResult) -> tuple[float, float]:
    """Makespan, and slot-seconds offered. Shards that started late did not offer anything before."""
    if not run.shards:
        makespan_s = _makespan_s(run)
        return makespan_s, run.slots * makespan_s
    lengths = [(max(0.0, shard.ended_at_s - shard.started_at_s), shard.slots) for shard in run.shards]
    return max(seconds for seconds, _ in lengths), sum(seconds * slots for seconds, slots in lengths)


def _makespan_s(run: RunResult) -> float:
    """From the start of the run to the end of its last world or test: the end of pytest itself takes no slots."""
    ends = [run.started_at_s]
    ends += [run.ended_at_s if world.ended_at_s is None else world.ended_at_s for world in run.worlds]
    ends += [test.final.started_at_s + test.final.duration_s for test in run.tests]
    return max(ends) - run.started_at_s


def _what_if(
    run: RunResult, worlds: Sequence[tuple[float, int]], beside_s: float, makespan_s: float
) -> tuple[float | None, float | None]:
    """The makespans with one more and one fewer: the measured one, shifted by how the estimate changes."""
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
    # More slots than all worlds could hold at once change nothing.
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
            heapreplace(loads, loads[0] + seconds * min(width, slots) / slots)
        return max(*loads, ordered[0][0], 0.0)

    return len(run.shards), estimate
