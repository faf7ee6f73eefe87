"""Deals tests to equal runners by time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapreplace

from disttest.model import TestCase
from disttest.planning.backends import GPU
from disttest.planning.batches import build_batches
from disttest.planning.simulate import plain_slots, simulate
from disttest.planning.timings import Timings


def world_size(test: TestCase) -> int:
    """Slots that a test needs; an ordinary test counts as one rank."""
    return test.world.size if test.world else 1


def have_gpus(tests: Iterable[TestCase]) -> bool:
    """Whether tests are planned for runners with GPUs: some world computes there."""
    return any(test.world is not None and test.world.device != "cpu" for test in tests)


def slots_of(test: TestCase, *, on_gpus: bool) -> int:
    """Slots of a runner that a test needs; where these are GPUs, a world on the CPU needs as little as no world."""
    return 1 if on_gpus and test.world and test.world.device == "cpu" else world_size(test)


def split_by_time(
    tests: Sequence[TestCase], timings: Timings, *, slots: int, runners: int
) -> list[list[TestCase]]:
    """Give the widest and longest to the runner with the least work so far (longest processing time first).

    Args:
        tests: what to deal.
        timings: what they are expected to take.
        slots: ranks that a runner runs at once.
        runners: how many lists come out, some perhaps empty.
    """
    by_id = {test.nodeid: test for test in tests}
    batches = build_batches(tests, timings, slots=slots * runners)
    on_gpus = have_gpus(tests)
    pieces = [
        (slots_of(by_id[batch.nodeids[0]], on_gpus=on_gpus), batch.expected_s, batch.nodeids)
        for batch in batches
    ]
    pieces += [(1, timings.expect(test), (test.nodeid,)) for test in tests if not test.world]
    loads = [(0.0, runner) for runner in range(runners)]  # a heap, as it is sorted
    chosen: dict[str, int] = {}
    for size, expected_s, nodeids in sorted(pieces, key=lambda piece: (-piece[0], -piece[1], piece[2])):
        load_s, runner = loads[0]
        heapreplace(loads, (load_s + size * expected_s, runner))
        chosen.update(dict.fromkeys(nodeids, runner))
    parts: list[list[TestCase]] = [[] for _ in range(runners)]
    for nodeid, test in by_id.items():
        parts[chosen[nodeid]].append(test)
    return parts


def expected_makespan_s(tests: Sequence[TestCase], timings: Timings, *, slots: int) -> float:
    """How long a runner is expected to take: its batches as the scheduler would run them, then its ordinary tests.

    Nobody knows the cores of a runner with GPUs: as many worlds on the CPU are taken to run beside those on GPUs.
    """
    batches = build_batches(tests, timings, slots=slots, cpu_slots=slots if have_gpus(tests) else 0)
    ordinary_s = sum(timings.expect(test) for test in tests if not test.world)
    runner = (*plain_slots(slots), *plain_slots(slots, GPU))
    return simulate(batches, runner).makespan_s + ordinary_s
