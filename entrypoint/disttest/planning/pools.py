"""Pools: the kinds of runners that a plan may use, and which of them is the cheapest for a world size."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from disttest.errors import NotEnoughDevices, UsageError
from disttest.model import Frozen, TestCase

POOL_FORM = "NAME:GPUS:RUNNERS or NAME:GPUS:RUNNERS:COST, for example gpu8:8:2 or gpu8:8:2:0.40"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Pool(Frozen):
    """A number of runners of one kind."""

    name: str
    gpus: int
    """GPUs of each runner; on a CPU pool, the ranks that it runs at once."""
    runners: int
    cost_per_minute: float
    """Of one runner, in any unit; by default its number of GPUs."""
    labels: tuple[str, ...]
    """What the job's ``runs-on`` asks for; by default the name."""

    def cost_of(self, world_size: int) -> float:
        """Cost of one minute of one world of that size on a runner that is full of them."""
        return self.cost_per_minute / (self.gpus // max(1, world_size))


def parse_pool(text: str) -> Pool:
    """Read ``--pool``.

    Raises:
        UsageError: it does not have the form, or a number in it is not positive.
    """
    name, *numbers = text.split(":")
    if len(numbers) not in (2, 3) or not _NAME.fullmatch(name):
        raise UsageError(f"--pool {text!r} can not be read; write {POOL_FORM}")
    gpus = _count(text, "GPUs per runner", numbers[0])
    runners = _count(text, "runners", numbers[1])
    cost = _cost(text, numbers[2]) if len(numbers) == 3 else float(gpus)
    return Pool(name=name, gpus=gpus, runners=runners, cost_per_minute=cost, labels=(name,))


def parse_pools(texts: Iterable[str], labels: Iterable[str] = ()) -> tuple[Pool, ...]:
    """Read all ``--pool`` options, and the ``--labels NAME=LABEL,LABEL`` that go with them.

    Raises:
        UsageError: one can not be read, two have one name, or labels name no pool.
    """
    pools: dict[str, Pool] = {}
    for text in texts:
        pool = parse_pool(text)
        if pool.name in pools:
            raise UsageError(f"two pools are named {pool.name!r}; give their runners as one --pool")
        pools[pool.name] = pool
    for text in labels:
        name, _, names = text.partition("=")
        chosen = tuple(label.strip() for label in names.split(","))
        if name not in pools or not all(_NAME.fullmatch(label) for label in chosen):
            raise UsageError(
                f"--labels {text!r} can not be read; write NAME=LABEL,LABEL with the name of a --pool "
                f"({', '.join(pools) or 'none is given'})"
            )
        pool = pools[name]
        pools[name] = Pool(
            **{**{field: getattr(pool, field) for field in Pool.__struct_fields__}, "labels": chosen}
        )
    return tuple(pools.values())


def world_size(test: TestCase) -> int:
    """Slots that a test needs; an ordinary test counts as one rank."""
    return test.world.size if test.world else 1


def have_gpus(tests: Iterable[TestCase]) -> bool:
    """Whether tests are planned for runners with GPUs: some world computes there."""
    return any(test.world is not None and test.world.device != "cpu" for test in tests)


def slots_of(test: TestCase, *, on_gpus: bool) -> int:
    """Slots of a runner that a test needs; where these are GPUs, a world on the CPU needs as little as no world."""
    return 1 if on_gpus and test.world and test.world.device == "cpu" else world_size(test)


def assign_pools(tests: Sequence[TestCase], pools: Sequence[Pool]) -> dict[str, list[TestCase]]:
    """Put each world size on the cheapest pool that holds it; among equals on the one with the fewest GPUs.

    Returns the tests by the name of the pool, in their order.

    Raises:
        NotEnoughDevices: no pool holds a world size; the message names the sizes and a test of each.
    """
    on_gpus = have_gpus(tests)
    sizes = {slots_of(test, on_gpus=on_gpus): test for test in reversed(tests)}
    chosen = {size: _cheapest(size, pools) for size in sizes}
    homeless = sorted(size for size, pool in chosen.items() if pool is None)
    if homeless:
        largest = max(pools, key=lambda pool: pool.gpus)
        examples = "; ".join(f"{size} ranks for {sizes[size].nodeid}" for size in homeless)
        raise NotEnoughDevices(
            f"no pool holds {examples}. The largest is {largest.name!r} with {largest.gpus} GPUs per runner: "
            f"add one like --pool gpu{homeless[-1]}:{homeless[-1]}:1, or leave these tests out."
        )
    by_pool: dict[str, list[TestCase]] = {pool.name: [] for pool in pools}
    for test in tests:
        pool = chosen[slots_of(test, on_gpus=on_gpus)]
        if pool is not None:
            by_pool[pool.name].append(test)
    return by_pool


def _cheapest(size: int, pools: Iterable[Pool]) -> Pool | None:
    fitting = [pool for pool in pools if pool.gpus >= size]
    return min(fitting, key=lambda pool: (pool.cost_of(size), pool.gpus, pool.name), default=None)


def _count(text: str, what: str, number: str) -> int:
    if not number.isascii() or not number.isdigit() or int(number) < 1:
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
