"""Distribute tests to equal runners by time. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapreplace

from disttest.model import TestCase
from disttest.planning.backends import GPU
from disttest.planning.batches import build_batches
from disttest.planning.simulate import plain_slots, simulate
from disttest.planning.timings import Timings


def world_size(test: TestCase) -> int:
    """Return the slots that a test needs; an ordinary test counts as one rank."""
    return test.world.size if test.world else 1


def have_gpus(tests: Iterable[TestCase]) -> bool:
    """Whether tests are planned for runners with GPUs: a world runs on GPUs."""
    return any(test.world is not None and test.world.device != "cpu" for test in tests)


def slots_of(test: TestCase, *, on_gpus: bool) -> int:
    """Return the slots that a test needs. If slots are GPUs, a world on the CPU counts as an ordinary test."""
    return 1 if on_gpus and test.world and test.world.device == "cpu" else world_size(test)


def split_by_time(
    tests: Sequence[TestCase], timings: Timings, *, slots: int, runners: int
) -> list[list[TestCase]]:
    """Assign the widest and longest to the runner with the least work so far (longest processing time first).

    Args:
        tests: tests to distribute.
        timings: expected durations.
        slots: ranks that a runner runs at a time.
        runners: number of lists to return, some perhaps empty.
    """
    by_id = {test.nodeid: test for test in tests}
    batches = build_batches(tests, timings, slots=slots * runners)
    on_gpus = have_gpus(tests)
    pieces = [
        (slots_of(by_id[batch.nodeids[0]], on_gpus=on_gpus), batch.expected_s, batch.nodeids)
        for batch in batches
    ]
    pieces += [(1, timings.expect(test), (test.nodeid,)) for test in tests if not test.world]
    loads = [(0.0, runner) for runner in range(runners)]  # sorted, so it is a heap
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
    """Return the expected time of a runner: its batches as the scheduler would run them, then its ordinary tests.

    The processors of a runner with GPUs are unknown: as many worlds on the CPU are assumed to run next to those on
    GPUs.
    """
    batches = build_batches(tests, timings, slots=slots, cpu_slots=slots if have_gpus(tests) else 0)
    ordinary_s = sum(timings.expect(test) for test in tests if not test.world)
    runner = (*plain_slots(slots), *plain_slots(slots, GPU))
    return simulate(batches, runner).makespan_s + ordinary_s
