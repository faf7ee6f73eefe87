"""Divides the tests of a pool of nodes into allocations: few leases by shape, and jobs for worlds that span nodes.

A scheduler queues, places and packs the allocations; here it is only decided which tests travel together. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapreplace

from disttest.extras.cluster.split import expected_makespan_s, have_gpus, slots_of, split_by_time
from disttest.model import Batch, Frozen, TestCase
from disttest.planning.backends import CPU, GPU
from disttest.planning.batches import build_batches
from disttest.planning.timings import Timings

LEAST_LEASE_S = 60.0
"""A lease has work for at least so long: each costs an allocation, an import of torch and a collection."""


class NodePool(Frozen):
    """Equal nodes, as far as a scheduler gives them out."""

    nodes: int
    gpus_per_node: int
    cpus_per_node: int

    def slots_for(self, device: str) -> int:
        """Ranks that a node runs at once: one on each GPU, or on each processor."""
        return self.cpus_per_node if device == "cpu" else self.gpus_per_node


class Allocation(Frozen):
    """Nodes that are held together, and what runs on them."""

    nodes: int
    ranks_per_node: int
    """Of its widest test; on the CPU also the number of processors that each node lends."""
    device: str
    tests: tuple[TestCase, ...]
    expected_s: float
    """Without the queue, and without the start of its nodes."""
    worlds: tuple[tuple[int, ...], ...] = ()
    """Where it spans nodes: which tests (by index) share a world, in order. A lease decides for itself."""

    @property
    def width(self) -> int:
        """Ranks on all its nodes."""
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
    """The allocations of a run, largest first.

    Args:
        tests: all that the run owes.
        timings: what they are expected to take.
        pool: where they run; no more allocations of a shape come out than it could hold at once.
        at_once: the same, as a number.
        least_s: work that is worth a lease of its own, in seconds.
        failed: node ids that go first; a lease sees to that by itself.
        together: whether tests of one shape share one world; a lease sees to that by itself, too.
    """
    spanning = [test for test in tests if test.world and test.world.nodes > 1]
    single = [test for test in tests if not test.world or test.world.nodes == 1]
    made = [
        *_spanning(spanning, timings, pool, at_once, failed, together=together),
        *_leases(single, timings, pool, at_once, least_s),
    ]
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
    """Worlds of one shape share allocations: one is dearer than a world in one that is there already."""
    by_id = {test.nodeid: test for test in tests}
    by_shape: dict[tuple[int, int, str], list[Batch]] = {}
    for batch in build_batches(tests, timings, slots=1, failed=failed, together=together):
        shape = batch.shape
        by_shape.setdefault((shape.nodes, shape.ranks_per_node, shape.device), []).append(batch)
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
    """Longest first, each to the part that has the least to do."""
    dealt: list[list[Batch]] = [[] for _ in range(parts)]
    loads = [(0.0, part) for part in range(parts)]
    for batch in sorted(batches, key=lambda batch: (-batch.expected_s, batch.batch_id)):
        load_s, part = loads[0]
        heapreplace(loads, (load_s + max(batch.expected_s, 0.001), part))
        dealt[part].append(batch)
    return [sorted(part, key=lambda batch: (not batch.urgent, batch.batch_id)) for part in dealt if part]


# --- leases


def _leases(
    tests: Sequence[TestCase], timings: Timings, pool: NodePool, at_once: int, least_s: float
) -> Iterable[Allocation]:
    """Leases of a few widths, as many of each as have work."""
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
    """How wide leases must be for ``at_once`` of them to fill the pool, or what of it has work to do.

    Such a part of a node that leases of it fill a node without a rest.
    """
    wanted = min(total, worthwhile) / at_once
    return next(
        part for part in range(1, per_node + 1) if per_node % part == 0 and part >= min(wanted, per_node)
    )


def _by_width(
    tests: Sequence[TestCase], widths: Mapping[str, int], slot_s: Mapping[str, float], least_s: float
) -> dict[int, list[TestCase]]:
    """Width of a lease -> its tests, in their order.

    Tests ride along in wider leases, whose gaps they fill: few leases start sooner than many. Only where they are worth
    leases of their own, and are more work than all that is wider, would whole nodes be held for what needs one GPU.
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
