"""Lower bound of the makespan of a run: no schedule of its worlds and ordinary tests takes less time. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from disttest.model import ShardSpan
from disttest.planning.simulate import lower_bound_s
from disttest.results.fold import RunResult, WorldSpan


def least_makespan_s(run: RunResult) -> float:
    """Return the lower bound of the makespan of these worlds and ordinary tests, each kind of slot on its own."""
    return max(map(least_of_part_s, parts_of(run)))


def parts_of(run: RunResult) -> list[RunResult]:
    """Return the run, or its shards with GPUs and those without."""
    worlds: dict[str, list[WorldSpan]] = {}
    for world in run.worlds if run.shards else ():
        # A merge prefixes the ids of worlds with the label of their shard.
        worlds.setdefault(world.world_id.partition("/")[0], []).append(world)
    kinds: dict[bool, list[ShardSpan]] = {True: [], False: []}
    for shard in run.shards:
        kinds[are_gpus(shard.cpu_slots, worlds.get(shard.label, ()))].append(shard)
    # All shards are of one kind, so one sum describes them.
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


def are_gpus(cpu_slots: int, worlds: Iterable[WorldSpan]) -> bool:
    """Whether the slots are GPUs; a machine with GPUs may run tests without them."""
    return bool(cpu_slots) or any(world.on_gpus for world in worlds)


def least_of_part_s(run: RunResult) -> float:
    """Return the lower bound for a run, or for merged shards of one kind."""
    ordinary_s = 0.0
    if not run.shards:
        attempts = (attempt for test in run.tests for attempt in test.attempts)
        ordinary_s = sum(attempt.duration_s for attempt in attempts if not attempt.world_id)
    return max(lower_bound_s(work_of(counted_worlds(run), run), run.slots), beside_bound_s(run), ordinary_s)


def counted_worlds(run: RunResult) -> list[WorldSpan]:
    """List the worlds whose slots the cost counts."""
    return [world for world in run.worlds if not run.is_beside(world)]


def beside_bound_s(run: RunResult) -> float:
    """Return the minimum time that worlds on the CPU need in a run on GPUs."""
    return lower_bound_s(work_of(filter(run.is_beside, run.worlds), run), run.cpu_slots)


def work_of(worlds: Iterable[WorldSpan], run: RunResult) -> list[tuple[float, int]]:
    """List seconds and width of each world."""
    return [(_length_s(world, run), len(world.slots)) for world in worlds]


def _length_s(world: WorldSpan, run: RunResult) -> float:
    ended_at_s = run.ended_at_s if world.ended_at_s is None else world.ended_at_s
    return max(0.0, ended_at_s - world.started_at_s)
