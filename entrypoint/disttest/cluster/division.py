"""Divides the tests of a run into jobs: a few leases for what fits one node, a few jobs for worlds that span nodes.

The engine queues, places and packs the jobs; the planner only decides which tests travel together. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapreplace

import msgspec

from disttest.cluster.job import JobKind, JobShape, JobSpec
from disttest.cluster.launcher import Capacity
from disttest.model import Frozen, Gang, TestCase
from disttest.planning.gangs import build_gangs
from disttest.planning.plan import plan_equal_shards
from disttest.planning.pools import world_size
from disttest.planning.timings import Timings

START_S = 120.0
"""What a job's limit allows for its start: interpreters, collection, torch from a slow file system."""
LEAST_LIMIT_S = 600.0
LEAST_LEASE_S = 60.0
"""A lease has work for at least so long: each costs an allocation, an import of torch and a collection."""


class Division(Frozen):
    """How to divide."""

    jobs: int
    """Jobs of one shape at most; the pool runs no more at once."""
    gpus_per_node: int = 0
    """GPUs that a job holds on each node; 0: as many as it has ranks there, where they compute on GPUs."""
    limit_s: float = 0.0
    """Wall time of a job; 0: from its tests' own limits."""
    deadline_s: float = 0.0
    """Of the whole run; 0: none."""


def divide(
    tests: Sequence[TestCase],
    timings: Timings,
    *,
    capacity: Capacity,
    division: Division,
    template: JobSpec,
) -> tuple[JobSpec, ...]:
    """The jobs of a run, widest first.

    Args:
        tests: all that the run owes.
        timings: what they are expected to take.
        capacity: the pool.
        division: how to divide.
        template: what all jobs have in common; its tests, kind, shape, id and limit are replaced.
    """
    spanning = [test for test in tests if test.world and test.world.nodes > 1]
    single = [test for test in tests if not test.world or test.world.nodes == 1]
    drafts = [
        *_spanning(spanning, timings, capacity, division),
        *_leases(single, timings, capacity, division),
    ]
    drafts.sort(key=lambda draft: -draft.shape.nodes * draft.shape.ranks_per_node)
    return tuple(
        msgspec.structs.replace(
            template,
            job_id=f"j{number}",
            kind=draft.kind,
            shape=draft.shape,
            tests=draft.tests,
            worlds=draft.worlds,
            limit_s=_limit_s(draft.tests, timings, capacity, division),
        )
        for number, draft in enumerate(drafts, 1)
    )


class _Draft(Frozen):
    kind: JobKind
    shape: JobShape
    tests: tuple[TestCase, ...]
    worlds: tuple[tuple[int, ...], ...] = ()


def _spanning(
    tests: Sequence[TestCase], timings: Timings, capacity: Capacity, division: Division
) -> Iterable[_Draft]:
    """Worlds of one shape share jobs: an allocation is dearer than a world in one that is there already."""
    by_id = {test.nodeid: test for test in tests}
    by_shape: dict[tuple[int, int, str], list[Gang]] = {}
    for gang in build_gangs(tests, timings, slots=1):
        shape = gang.shape
        by_shape.setdefault((shape.nodes, shape.ranks_per_node, shape.device), []).append(gang)
    for (nodes, ranks, device), gangs in by_shape.items():
        beside = max(1, min(division.jobs, capacity.nodes // nodes, len(gangs)))
        for part in _deal(gangs, beside):
            yield _spanning_draft(
                part,
                by_id,
                JobShape(nodes=nodes, ranks_per_node=ranks, gpus_per_node=_gpus(division, ranks, device)),
            )


def _spanning_draft(gangs: Sequence[Gang], by_id: Mapping[str, TestCase], shape: JobShape) -> _Draft:
    tests = [by_id[nodeid] for gang in gangs for nodeid in gang.nodeids]
    number = {test.nodeid: index for index, test in enumerate(tests)}
    worlds = tuple(tuple(number[nodeid] for nodeid in gang.nodeids) for gang in gangs)
    return _Draft(kind=JobKind.WORLD, shape=shape, tests=tuple(tests), worlds=worlds)


def _deal(gangs: Sequence[Gang], parts: int) -> list[list[Gang]]:
    """Longest first, each to the part that has the least to do."""
    dealt: list[list[Gang]] = [[] for _ in range(parts)]
    loads = [(0.0, part) for part in range(parts)]
    for gang in sorted(gangs, key=lambda gang: (-gang.expected_s, gang.gang_id)):
        load_s, part = loads[0]
        heapreplace(loads, (load_s + max(gang.expected_s, 0.001), part))
        dealt[part].append(gang)
    return [sorted(part, key=lambda gang: gang.gang_id) for part in dealt if part]


def _leases(
    tests: Sequence[TestCase], timings: Timings, capacity: Capacity, division: Division
) -> Iterable[_Draft]:
    """One lease for each node at most, all of one width: wide enough for the widest world that fits one node."""
    if not tests:
        return
    device = "cuda" if any(test.world and test.world.device != "cpu" for test in tests) else "cpu"
    per_node = capacity.gpus_per_node if device != "cpu" else capacity.cpus_per_node
    widest = max(world_size(test) for test in tests)
    slots = max(widest, 1) if device == "cpu" else max(1, min(max(widest, 1), max(per_node, 1)))
    work_s = sum(timings.expect(test) * min(1.0, world_size(test) / slots) for test in tests)
    worthwhile = max(1, int(work_s / LEAST_LEASE_S))
    count = max(1, min(division.jobs, capacity.nodes * max(1, per_node // slots), len(tests), worthwhile))
    plan = plan_equal_shards(tests, timings, shards=min(count, 256), slots=max(slots, widest))
    for shard in plan.shards:
        if shard.tests:
            shape = JobShape(nodes=1, ranks_per_node=slots, gpus_per_node=_gpus(division, slots, device))
            yield _Draft(kind=JobKind.LEASE, shape=shape, tests=shard.tests)


def _gpus(division: Division, ranks: int, device: str) -> int:
    return division.gpus_per_node or (ranks if device != "cpu" else 0)


def _limit_s(tests: Sequence[TestCase], timings: Timings, capacity: Capacity, division: Division) -> float:
    """Three times what the tests are expected to take, and one of them up to its own limit.

    Never beyond the run's deadline, nor beyond what the engine lets any job have.
    """
    if division.limit_s:
        return division.limit_s
    expected_s = sum(min(test.timeout_s, 3 * max(0.5, timings.expect(test))) for test in tests)
    limit_s = max(LEAST_LIMIT_S, START_S + expected_s + max(test.timeout_s for test in tests))
    limits = [limit_s]
    limits += [division.deadline_s + START_S] if division.deadline_s else []
    limits += [capacity.longest_job_s] if capacity.longest_job_s else []
    return min(limits)
