"""Divide the tests of a node pool into allocations: few leases by shape, and jobs for worlds that span nodes.

The scheduler queues, places and packs the allocations; this module only decides which tests share one. Pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapreplace

from disttest.model import Batch, Frozen, TestCase
from disttest.planning.backends import CPU, GPU
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
    # The ids break ties, so that equal input gives an equal plan.
    for size, expected_s, nodeids in sorted(pieces, key=lambda piece: (-piece[0], -piece[1], piece[2])):
        load_s, runner = loads[0]
        heapreplace(loads, (load_s + size * expected_s, runner))
        chosen.update(dict.fromkeys(nodeids, runner))
    # Each part in the order of collection, which a runner keeps.
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


LEAST_LEASE_S = 60.0
"""Least work of a lease, in seconds: each lease costs an allocation, an import of torch and a collection."""


class NodePool(Frozen):
    """Equal nodes that a scheduler allocates."""

    nodes: int
    gpus_per_node: int
    cpus_per_node: int

    def slots_for(self, device: str) -> int:
        """Return the number of ranks that a node runs at a time: one on each GPU, or on each processor."""
        return self.cpus_per_node if device == "cpu" else self.gpus_per_node


class Allocation(Frozen):
    """Nodes that are held together, and the tests that run on them."""

    nodes: int
    ranks_per_node: int
    """Ranks of its widest test; on the CPU also the number of processors used on each node."""
    device: str
    tests: tuple[TestCase, ...]
    expected_s: float
    """Expected time without the queue and the start of the nodes."""
    worlds: tuple[tuple[int, ...], ...] = ()
    """If it spans nodes: indices of the tests that share a world, in order. A lease divides its tests itself."""

    @property
    def width(self) -> int:
        """Return the number of ranks on all nodes."""
        return self.nodes * self.ranks_per_node


def allocate(
    tests: Sequence[TestCase],
    timings: Timings,
    pool: NodePool,
    *,
    at_once: int,
    least_s: float = LEAST_LEASE_S,
    failed: Collection[str] = (),
    together: bool = False,
) -> tuple[Allocation, ...]:
    """Return the allocations of a run, largest first.

    Args:
        tests: all tests of the run.
        timings: expected durations.
        pool: available nodes; it limits the number of allocations of one shape.
        at_once: upper limit of that number.
        least_s: work that justifies a lease of its own, in seconds.
        failed: node ids of tests to run first; a lease orders its tests itself.
        together: whether tests of one shape share one world; a lease decides this itself, too.
    """
    spanning = [test for test in tests if test.world and test.world.nodes > 1]
    single = [test for test in tests if not test.world or test.world.nodes == 1]
    made = [
        *_spanning(spanning, timings, pool, at_once, failed, together=together),
        *_leases(single, timings, pool, at_once, least_s),
    ]
    # Wide allocations wait longest for free nodes, so they are submitted first.
    return tuple(sorted(made, key=lambda each: -each.width))


# --- worlds that span nodes


def _spanning(
    tests: Sequence[TestCase],
    timings: Timings,
    pool: NodePool,
    at_once: int,
    failed: Collection[str],
    *,
    together: bool,
) -> Iterable[Allocation]:
    """Divide worlds that span nodes. Worlds of one shape share allocations, which cost more than worlds in one."""
    by_id = {test.nodeid: test for test in tests}
    by_shape: dict[tuple[int, int, str], list[Batch]] = {}
    for batch in build_batches(tests, timings, slots=1, failed=failed, together=together):
        shape = batch.shape
        by_shape.setdefault((shape.nodes, shape.ranks_per_node, shape.device), []).append(batch)
    # One allocation for all worlds of a shape: a new world after a failure is forked from processes that have collected
    # already. A new step for each world would queue, import torch and collect again.
    for (nodes, ranks, device), batches in by_shape.items():
        beside = max(1, min(at_once, pool.nodes // nodes, len(batches)))
        for part in _deal(batches, beside):
            yield _of_batches(part, by_id, nodes, ranks, device)


def _of_batches(
    batches: Sequence[Batch], by_id: Mapping[str, TestCase], nodes: int, ranks: int, device: str
) -> Allocation:
    tests = [by_id[nodeid] for batch in batches for nodeid in batch.nodeids]
    number = {test.nodeid: index for index, test in enumerate(tests)}
    return Allocation(
        nodes=nodes,
        ranks_per_node=ranks,
        device=device,
        tests=tuple(tests),
        expected_s=sum(batch.expected_s for batch in batches),
        worlds=tuple(tuple(number[nodeid] for nodeid in batch.nodeids) for batch in batches),
    )


def _deal(batches: Sequence[Batch], parts: int) -> list[list[Batch]]:
    """Distribute batches, the longest first, each to the part with the least work."""
    dealt: list[list[Batch]] = [[] for _ in range(parts)]
    loads = [(0.0, part) for part in range(parts)]
    for batch in sorted(batches, key=lambda batch: (-batch.expected_s, batch.batch_id)):
        load_s, part = loads[0]
        # A batch of 0 s must count, or its part would stay the least loaded and get all of them.
        heapreplace(loads, (load_s + max(batch.expected_s, 0.001), part))
        dealt[part].append(batch)
    return [sorted(part, key=lambda batch: (not batch.urgent, batch.batch_id)) for part in dealt if part]


# --- leases


def _leases(
    tests: Sequence[TestCase], timings: Timings, pool: NodePool, at_once: int, least_s: float
) -> Iterable[Allocation]:
    """Divide tests of single nodes into leases of a few widths, as many of each as there is work for.

    In simulations, leases of whole nodes beat leases of each width: on two nodes the makespan was a fifth shorter, with
    3 jobs in place of 11, since narrow worlds fill the gaps of wide ones.
    """
    device = GPU if have_gpus(tests) else CPU
    per_node = max(1, pool.slots_for(device))
    sizes = {test.nodeid: slots_of(test, on_gpus=device != "cpu") for test in tests}
    slot_s = {test.nodeid: timings.expect(test) * sizes[test.nodeid] for test in tests}
    # Ordinary tests run one after another, however wide their lease is.
    work_s = sum(slot_s[test.nodeid] for test in tests if test.world)
    floor = _least_width(int(work_s / least_s), pool.nodes * per_node, per_node, at_once)
    most = per_node if device != "cpu" else max(sizes.values(), default=1)
    widths = {nodeid: min(max(size, floor), max(most, floor)) for nodeid, size in sizes.items()}
    for slots, of_width in _by_width(tests, widths, slot_s, least_s).items():
        work_s = sum(min(slot_s[test.nodeid] / slots, timings.expect(test)) for test in of_width)
        fitting = pool.nodes * max(1, per_node // slots)
        count = max(1, min(at_once, fitting, len(of_width), int(work_s / least_s)))
        for part in split_by_time(of_width, timings, slots=slots, runners=count):
            if part:
                yield Allocation(
                    nodes=1,
                    ranks_per_node=slots,
                    device=device,
                    tests=tuple(part),
                    expected_s=expected_makespan_s(part, timings, slots=slots),
                )


def _least_width(worthwhile: int, total: int, per_node: int, at_once: int) -> int:
    """Return the width with which ``at_once`` leases fill the pool, or the part of it that has work.

    The width divides a node without a remainder.
    """
    wanted = min(total, worthwhile) / at_once
    return next(
        part for part in range(1, per_node + 1) if per_node % part == 0 and part >= min(wanted, per_node)
    )


def _by_width(
    tests: Sequence[TestCase], widths: Mapping[str, int], slot_s: Mapping[str, float], least_s: float
) -> dict[int, list[TestCase]]:
    """Map the width of leases to their tests, in their order.

    Tests share wider leases, whose gaps they fill: few leases start sooner than many. They get leases of their own only
    if these are worthwhile and hold more work than all wider ones. Otherwise whole nodes would be held for tests on one
    GPU.
    """
    of_width_s: dict[int, float] = {}
    for test in tests:
        width = widths[test.nodeid]
        of_width_s[width] = of_width_s.get(width, 0.0) + slot_s[test.nodeid]
    goes_to: dict[int, int] = {}
    wider, wider_slot_s = max(of_width_s, default=1), 0.0
    for width in sorted(of_width_s, reverse=True):
        if of_width_s[width] / width >= least_s and of_width_s[width] > wider_slot_s:
            wider = width
        goes_to[width] = wider
        wider_slot_s += of_width_s[width]
    chosen: dict[int, list[TestCase]] = {}
    for test in tests:
        chosen.setdefault(goes_to[widths[test.nodeid]], []).append(test)
    return chosen
