"""Pools: the kinds of runners that a plan may use, and the choice of the cheapest one for a world size."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from disttest.errors import NotEnoughDevices, SchedulerError, UsageError
from disttest.extras.cluster.allocations import have_gpus, slots_of
from disttest.extras.cluster.place import Size
from disttest.extras.cluster.schedulers import SCHEDULERS
from disttest.model import Frozen, TestCase

POOL_FORM = "NAME:GPUS:RUNNERS or NAME:GPUS:RUNNERS:COST, for example gpu8:8:2 or gpu8:8:2:0.40"
SCHEDULER_FORM = (
    "NAME:slurm, NAME:slurm:PARTITION, NAME:slurm:PARTITION:NODESxGPUS or NAME:slurm:PARTITION:NODESxGPUS:COST, "
    "for example big:slurm:gpu or big:slurm:gpu:16x8; the same with kubernetes, and CONTEXT/NAMESPACE for the partition"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PARTITION = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._@/-]*")


Ask = Callable[[str, str], Size]
"""Function from a scheduler and a partition to its size; raises SchedulerError if the scheduler does not answer."""


class Pool(Frozen):
    """Runners of one kind, or the nodes of a scheduler."""

    name: str
    gpus: int
    """GPUs of each runner or node; on a CPU pool, the ranks that it runs at a time."""
    runners: int
    """Number of runners, or of nodes if the pool is a scheduler's."""
    cost_per_minute: float
    """Cost of one runner or node, in any unit; by default its number of GPUs."""
    labels: tuple[str, ...]
    """Labels for the job's ``runs-on``; by default the name of the pool."""
    scheduler: str = ""
    """Scheduler of the nodes; empty for runners."""
    partition: str = ""
    """Partition of the scheduler; empty for its default."""
    device: str = ""
    """Device of the ranks on the nodes of a scheduler."""

    def holds(self, shape: Shape) -> bool:
        """Whether such a world fits."""
        nodes, ranks = shape
        return ranks <= self.gpus and (nodes == 1 or (bool(self.scheduler) and nodes <= self.runners))

    def cost_of(self, shape: Shape) -> float:
        """Return the cost of one minute of one such world on runners that are full of them."""
        nodes, ranks = shape
        # Whole worlds only: the remaining GPUs of a runner cost as much.
        return nodes * self.cost_per_minute / (self.gpus // max(1, ranks))


Shape = tuple[int, int]
"""Nodes of a world, and its ranks on each node."""


def parse_pool(text: str, ask: Ask | None = None) -> Pool:
    """Parse ``--pool``; call ``ask`` for the size of a scheduler's pool if the text has none.

    Raises:
        UsageError: the text has another form, or one of its numbers is not positive.
    """
    name, *numbers = text.split(":")
    if numbers and numbers[0].lower() in SCHEDULERS:
        return _parse_scheduler_pool(text, name, numbers[0].lower(), numbers[1:], ask)
    if len(numbers) not in (2, 3) or not _NAME.fullmatch(name):
        raise UsageError(f"--pool {text!r} cannot be read; write {POOL_FORM}; or {SCHEDULER_FORM}")
    gpus = _count(text, "GPUs per runner", numbers[0])
    runners = _count(text, "runners", numbers[1])
    cost = _cost(text, numbers[2]) if len(numbers) == 3 else float(gpus)
    return Pool(name=name, gpus=gpus, runners=runners, cost_per_minute=cost, labels=(name,))


def _parse_scheduler_pool(
    text: str, name: str, scheduler: str, words: Sequence[str], ask: Ask | None
) -> Pool:
    partition, size_text, cost_text = (*words, "", "", "")[:3]
    if len(words) > 3 or not _NAME.fullmatch(name) or (partition and not _PARTITION.fullmatch(partition)):
        raise UsageError(f"--pool {text!r} cannot be read; write {SCHEDULER_FORM}")
    size = _size(text, size_text) if size_text else _asked(text, scheduler, partition, ask)
    return Pool(
        name=name,
        gpus=size.gpus,
        runners=size.nodes,
        cost_per_minute=_cost(text, cost_text) if cost_text else float(size.gpus),
        labels=(name,),
        scheduler=scheduler,
        partition=partition,
        device=size.device,
    )


def _size(text: str, words: str) -> Size:
    match = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", words)
    if match is None or not int(match[1]) or not int(match[2]):
        raise UsageError(
            f"--pool {text!r}: {words!r} is not NODESxGPUS, such as 16x8; leave it out to ask the scheduler"
        )
    return Size(nodes=int(match[1]), gpus=int(match[2]))


def _asked(text: str, scheduler: str, partition: str, ask: Ask | None) -> Size:
    if ask is None:
        raise UsageError(f"--pool {text!r} does not say how large the pool is; write {SCHEDULER_FORM}")
    try:
        return ask(scheduler, partition)
    except SchedulerError as error:
        raise SchedulerError(
            f"--pool {text!r}: {error}; give its size (NAME:{scheduler}:PARTITION:NODESxGPUS) to plan without asking"
        ) from error


def parse_pools(texts: Iterable[str], labels: Iterable[str] = (), ask: Ask | None = None) -> tuple[Pool, ...]:
    """Parse all ``--pool`` options, and the ``--labels NAME=LABEL,LABEL`` that belong to them.

    Raises:
        UsageError: a text is invalid, two pools have the same name, or labels name no pool.
    """
    pools: dict[str, Pool] = {}
    for text in texts:
        pool = parse_pool(text, ask)
        if pool.name in pools:
            raise UsageError(f"two pools are named {pool.name!r}; give their runners as one --pool")
        pools[pool.name] = pool
    for text in labels:
        name, _, names = text.partition("=")
        chosen = tuple(label.strip() for label in names.split(","))
        if name not in pools or not all(_NAME.fullmatch(label) for label in chosen):
            raise UsageError(
                f"--labels {text!r} cannot be read; write NAME=LABEL,LABEL with the name of a --pool "
                f"({', '.join(pools) or 'none is given'})"
            )
        pool = pools[name]
        pools[name] = Pool(
            **{**{field: getattr(pool, field) for field in Pool.__struct_fields__}, "labels": chosen}
        )
    return tuple(pools.values())


def shape_of(test: TestCase, *, on_gpus: bool) -> Shape:
    """Return the shape of world that a test needs."""
    nodes = test.world.nodes if test.world else 1
    return nodes, max(1, slots_of(test, on_gpus=on_gpus) // nodes)


def assign_pools(tests: Sequence[TestCase], pools: Sequence[Pool]) -> dict[str, list[TestCase]]:
    """Assign each shape of worlds to the cheapest pool that holds it; among equals to the one with the fewest GPUs.

    Returns:
        The tests of each pool by its name, in their order.

    Raises:
        NotEnoughDevices: no pool holds a shape; the message names each size with a test.
    """
    on_gpus = have_gpus(tests)
    # Reversed, so that the first test of a shape is left, as the example in the message.
    shapes = {shape_of(test, on_gpus=on_gpus): test for test in reversed(tests)}
    chosen = {shape: _cheapest(shape, pools) for shape in shapes}
    homeless = sorted(shape for shape, pool in chosen.items() if pool is None)
    if homeless:
        raise NotEnoughDevices(_homeless(homeless, shapes, pools))
    by_pool: dict[str, list[TestCase]] = {pool.name: [] for pool in pools}
    for test in tests:
        pool = chosen[shape_of(test, on_gpus=on_gpus)]
        if pool is not None:
            by_pool[pool.name].append(test)
    return by_pool


def _homeless(homeless: Sequence[Shape], shapes: Mapping[Shape, TestCase], pools: Sequence[Pool]) -> str:
    largest = max(pools, key=lambda pool: pool.gpus)
    examples = "; ".join(f"{_ranks(shape)} for {shapes[shape].nodeid}" for shape in homeless)
    nodes, ranks = max(homeless)
    wanted = (
        f"gpu{ranks}:{ranks}:1"
        if nodes == 1
        else f"{largest.name}-nodes:{next(iter(SCHEDULERS))}::{nodes}x{ranks}"
    )
    return (
        f"no pool holds {examples}. The largest is {largest.name!r} with {largest.gpus} GPUs per "
        f"{'node' if largest.scheduler else 'runner'}: add one like --pool {wanted}, or leave these tests out."
    )


def _ranks(shape: Shape) -> str:
    nodes, ranks = shape
    return f"{nodes * ranks} ranks over {nodes} nodes" if nodes > 1 else f"{ranks} ranks"


def _cheapest(shape: Shape, pools: Iterable[Pool]) -> Pool | None:
    # The cheapest pool is chosen even if another one is idle, so that the cost of a plan is easy to foresee.
    fitting = [pool for pool in pools if pool.holds(shape)]
    return min(fitting, key=lambda pool: (pool.cost_of(shape), pool.gpus, pool.name), default=None)


def _count(text: str, what: str, number: str) -> int:
    # isdigit alone accepts '²', which int() refuses, and digits of other scripts.
    if not number.isascii() or not number.isdigit() or len(number) > 9 or int(number) < 1:
        raise UsageError(f"--pool {text!r}: {what} must be a whole number of at least 1, not {number!r}")
    return int(number)


def _cost(text: str, number: str) -> float:
    try:
        cost = float(number)
    except ValueError:
        cost = math.nan
    if not math.isfinite(cost) or cost < 0:
        raise UsageError(
            f"--pool {text!r}: the cost per minute must be a number of at least 0, not {number!r}"
        )
    return cost
