"""The plan: which tests each runner gets. Made once from one snapshot of timings, then passed to every shard."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from disttest.errors import NotEnoughDevices, UsageError
from disttest.extras.cluster.allocations import Allocation, NodePool, allocate
from disttest.extras.cluster.split import expected_makespan_s, have_gpus, slots_of, split_by_time
from disttest.extras.shards.pools import Pool, assign_pools
from disttest.model import UNREADABLE, Frozen, TestCase
from disttest.planning.timings import Timings

PLAN_VERSION = 1

MATRIX_LIMIT = 256
"""Jobs in one matrix of GitHub Actions."""

NO_OP_SHARD = 0
"""The shard of a plan without tests: its job runs nothing (and any test that has appeared since)."""

VANISHED = "planned, but no longer exists"
"""The note that a shard's run makes for a planned test that it could not find; ``disttest merge`` reads it."""


LEAST_SHARD_S = 300.0
"""Work that is worth a lease of its own where each is a job of a workflow, too."""


class Grant(Frozen):
    """The nodes of a scheduler that a shard asks for."""

    scheduler: str
    partition: str
    nodes: int
    ranks_per_node: int
    spread: int = 1
    """Over how many nodes worlds were spread that do not say so themselves."""


class Shard(Frozen):
    """What one job runs."""

    number: int
    """Counted from 1."""
    name: str
    pool: str
    labels: tuple[str, ...]
    gpus: int
    """GPUs (on a CPU pool: slots) of its runner, or of all nodes that it asks for."""
    tests: tuple[TestCase, ...]
    expected_s: float
    grant: Grant | None = None
    """None where its job runs the tests itself."""

    @property
    def gpu_minutes(self) -> float:
        """What the runner's GPUs are expected to cost, idle ones included."""
        return self.expected_s / 60 * self.gpus


class Plan(Frozen):
    """The content of ``plan.json``."""

    plan_id: str
    """Digest of the rest."""
    shards: tuple[Shard, ...]
    revision: str = ""
    """The state of the repository that it was made for (a commit); empty when unknown."""
    version: int = PLAN_VERSION

    @property
    def last(self) -> Shard | None:
        """The last shard that has tests; None when there is nothing to run."""
        return next((shard for shard in reversed(self.shards) if shard.tests), None)


class Selection(Frozen):
    """What one shard runs of the tests that exist now, as node ids."""

    run: tuple[str, ...]
    """In the order in which they were collected; ``new`` included."""
    vanished: tuple[str, ...]
    """Planned for this shard, but they no longer exist."""
    new: tuple[str, ...]
    """In no shard of the plan; this shard takes them."""

    def notes(self) -> tuple[tuple[str, str], ...]:
        """``(nodeid, message)`` for the journal and for the user."""
        gone = ((nodeid, VANISHED) for nodeid in self.vanished)
        return (*gone, *((nodeid, "not in the plan: run by this shard") for nodeid in self.new))


def plan_shards(
    tests: Sequence[TestCase],
    timings: Timings,
    *,
    pools: Sequence[Pool],
    revision: str = "",
    spread: int = 1,
) -> Plan:
    """Plan tests on pools: each world size on the cheapest pool that holds it, split by time over its runners.

    A runner that would get nothing gets no shard. On the nodes of a scheduler a shard is an allocation: a lease of one
    node, or the nodes of worlds that span them; the largest first. ``spread`` is what such shards remember of
    ``--nodes``.

    Raises:
        NotEnoughDevices: no pool holds a world size.
        UsageError: no pool is given, or more shards come out than a matrix may have.
    """
    if not pools:
        raise UsageError("a plan needs runners: give --pool NAME:GPUS:RUNNERS, --shards N or --by world-size")
    by_pool = assign_pools(tests, pools)
    shards: list[Shard] = []
    # Tests that appear later go to the last shard: a scheduler finds a place for any.
    for pool in sorted(pools, key=lambda pool: (bool(pool.scheduler), pool.gpus, pool.name)):
        made = _granted if pool.scheduler else _on_runners
        shards += made(pool, by_pool[pool.name], timings, len(shards), spread)
    return _plan(shards, revision)


def plan_equal_shards(
    tests: Sequence[TestCase], timings: Timings, *, shards: int, slots: int = 0, revision: str = ""
) -> Plan:
    """Plan tests on that many equal runners; exactly that many shards come out, some perhaps empty.

    ``slots`` is how many ranks a runner runs at once; by default what the largest world needs.

    Raises:
        UsageError: the number of shards is not between 1 and the limit of a matrix, or slots are negative.
        NotEnoughDevices: a world is larger than ``slots``.
    """
    if not 1 <= shards <= MATRIX_LIMIT:
        raise UsageError(f"--shards must be between 1 and {MATRIX_LIMIT}, not {shards}")
    if slots < 0:
        raise UsageError(f"the slots of a runner must be at least 1, not {slots}")
    on_gpus = have_gpus(tests)
    gpus = slots or max((slots_of(test, on_gpus=on_gpus) for test in tests), default=1)
    pool = Pool(name="shard", gpus=gpus, runners=shards, cost_per_minute=gpus, labels=())
    assign_pools(tests, [pool])
    parts = enumerate(split_by_time(tests, timings, slots=gpus, runners=shards), 1)
    return _plan((_shard(number, pool, part, number, timings) for number, part in parts), revision)


def plan_by_world_size(tests: Sequence[TestCase], timings: Timings, *, revision: str = "") -> Plan:
    """Plan one shard for each world size; ordinary tests go with the smallest."""
    smallest = min((test.world.size for test in tests if test.world), default=1)
    by_size: dict[int, list[TestCase]] = {}
    for test in tests:
        by_size.setdefault(test.world.size if test.world else smallest, []).append(test)
    pools = {
        size: Pool(name=f"world-{size}", gpus=size, runners=1, cost_per_minute=size, labels=())
        for size in sorted(by_size)
    }
    parts = enumerate(pools.items(), 1)
    return _plan((_shard(n, pool, by_size[size], 0, timings) for n, (size, pool) in parts), revision)


def select(plan: Plan, number: int, tests: Iterable[TestCase]) -> Selection:
    """Say which of the tests that exist now a shard runs.

    A test that no shard has goes to the last shard that has tests; its runner is one of those with the most GPUs.

    Raises:
        UsageError: the plan has no such shard.
    """
    shard = find_shard(plan, number)
    existing = tuple(tests)
    planned = {test.nodeid for test in shard.tests} if shard else set()
    everywhere = {test.nodeid for each in plan.shards for test in each.tests}
    takes_new = number == (plan.last.number if plan.last else NO_OP_SHARD)
    new = tuple(test.nodeid for test in existing if takes_new and test.nodeid not in everywhere)
    mine = planned.union(new)
    found = {test.nodeid for test in existing}
    return Selection(
        run=tuple(test.nodeid for test in existing if test.nodeid in mine),
        vanished=tuple(test.nodeid for test in shard.tests if test.nodeid not in found) if shard else (),
        new=new,
    )


def find_shard(plan: Plan, number: int) -> Shard | None:
    """The shard of that number; None for the no-op shard of a plan without tests.

    Raises:
        UsageError: the plan has no such shard.
    """
    found = next((shard for shard in plan.shards if shard.number == number), None)
    if found is None and not (number == NO_OP_SHARD and plan.last is None):
        have = f"1 to {len(plan.shards)}" if plan.shards else f"only the empty shard {NO_OP_SHARD}"
        raise UsageError(
            f"shard {number} is not in the plan, which has {have}; take the number from its matrix"
        )
    return found


def check_revision(plan: Plan, revision: str) -> None:
    """Refuse a plan that was made for another state of the repository; unknown states are let through.

    Raises:
        UsageError: both states are known and differ.
    """
    if plan.revision and revision and plan.revision != revision:
        raise UsageError(
            f"the plan was made for {plan.revision}, and the tests here are {revision}: run disttest plan again, "
            "or pass --stale-plan to run what still exists (new tests go to the last shard)"
        )


def check_device(plan: Plan, number: int, selection: Selection, device: str) -> None:
    """Refuse a shard that was planned for another kind of runner: its tests would all be missing, and pass unseen.

    Args:
        plan: the plan.
        number: of the shard.
        selection: what :func:`select` made of it here.
        device: where ranks compute here.

    Raises:
        NotEnoughDevices: it has worlds on GPUs, and there are none.
        UsageError: it was planned for the CPU, and none of its worlds exists on GPUs.
    """
    shard = find_shard(plan, number)
    worlds = {test.nodeid: test.world for test in shard.tests if test.world} if shard else {}
    on_gpus = next((world for world in worlds.values() if world.device != "cpu"), None)
    if shard is None or not worlds:
        return
    if on_gpus and device == "cpu":
        raise NotEnoughDevices(
            f"shard {number} of the plan has worlds on GPUs ({on_gpus}), and this run has no GPU: "
            f"give it a runner of the pool {shard.pool!r} (see disttest doctor), or plan with --device cpu"
        )
    if not on_gpus and device != "cpu" and set(worlds) <= set(selection.vanished):
        raise UsageError(
            f"shard {number} was planned for the CPU ({next(iter(worlds.values()))}), and this run has GPUs: "
            "plan with --device cuda, or run with --device cpu"
        )


def encode_plan(plan: Plan) -> bytes:
    """The bytes of ``plan.json``, indented for people."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"


def decode_plan(data: bytes, source: str = "plan.json") -> Plan:
    """Read ``plan.json``.

    Raises:
        UsageError: it is not a plan, of another version, or contradicts itself.
    """
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != PLAN_VERSION:
            raise UsageError(
                f"{source} is a plan of version {version}, and this disttest reads version {PLAN_VERSION}: "
                "run disttest plan again with the disttest that runs the shards"
            )
        plan = msgspec.json.decode(data, type=Plan)
    except UNREADABLE as error:
        raise UsageError(f"{source} is not a plan: {error}; write one with disttest plan") from error
    _refuse_repeats(source, "shard", (shard.number for shard in plan.shards))
    _refuse_repeats(source, "test", (test.nodeid for shard in plan.shards for test in shard.tests))
    return plan


def render_matrix(plan: Plan) -> dict[str, Any]:
    """The plan as a matrix of GitHub Actions: ``{"include": [...]}``, one entry for each shard that has tests.

    A matrix must not be empty, so a plan without tests has one entry with ``"no_op": true`` and shard 0; a workflow
    may skip it, and ``disttest run --plan plan.json --shard 0`` runs nothing.
    """
    entries = [_matrix_entry(shard) for shard in plan.shards if shard.tests]
    return {"include": entries or [dict(_NO_OP_ENTRY)]}


class _Versioned(Frozen):
    version: int = PLAN_VERSION


_NO_OP_ENTRY: Mapping[str, Any] = {
    "name": "nothing to run",
    "pool": "",
    "labels": ["ubuntu-latest"],
    "shard": NO_OP_SHARD,
    "launcher": "",
    "nodes": 1,
    "gpus": 0,
    "tests": 0,
    "seconds": 0,
    "gpu_minutes": 0.0,
    "no_op": True,
}


def _matrix_entry(shard: Shard) -> dict[str, Any]:
    return {
        "name": shard.name,
        "pool": shard.pool,
        "labels": list(shard.labels),
        "shard": shard.number,
        "launcher": shard.grant.scheduler if shard.grant else "",
        "nodes": shard.grant.nodes if shard.grant else 1,
        "gpus": shard.gpus,
        "tests": len(shard.tests),
        "seconds": round(shard.expected_s),
        "gpu_minutes": round(shard.gpu_minutes, 1),
        "no_op": False,
    }


def _on_runners(
    pool: Pool, tests: Sequence[TestCase], timings: Timings, before: int, _spread: int
) -> list[Shard]:
    parts = split_by_time(tests, timings, slots=pool.gpus, runners=pool.runners)
    owing = [(index, part) for index, part in enumerate(parts, 1) if part]
    return [
        _shard(before + number, pool, part, index, timings) for number, (index, part) in enumerate(owing, 1)
    ]


def _granted(
    pool: Pool, tests: Sequence[TestCase], timings: Timings, before: int, spread: int
) -> list[Shard]:
    nodes = NodePool(nodes=pool.runners, gpus_per_node=pool.gpus, cpus_per_node=pool.gpus)
    made = allocate(tests, timings, nodes, at_once=MATRIX_LIMIT, least_s=LEAST_SHARD_S)
    return [_granted_shard(before + n, n, pool, each, spread) for n, each in enumerate(made, 1)]


def _granted_shard(number: int, index: int, pool: Pool, made: Allocation, spread: int) -> Shard:
    return Shard(
        number=number,
        name=f"{pool.name}-{index}",
        pool=pool.name,
        labels=pool.labels,
        gpus=made.width,
        tests=made.tests,
        expected_s=round(made.expected_s, 3),
        grant=Grant(
            scheduler=pool.scheduler,
            partition=pool.partition,
            nodes=made.nodes,
            ranks_per_node=made.ranks_per_node,
            spread=spread,
        ),
    )


def _shard(number: int, pool: Pool, tests: Sequence[TestCase], index: int, timings: Timings) -> Shard:
    return Shard(
        number=number,
        name=f"{pool.name}-{index}" if index else pool.name,
        pool=pool.name,
        labels=pool.labels,
        gpus=pool.gpus,
        tests=tuple(tests),
        expected_s=round(expected_makespan_s(tests, timings, slots=pool.gpus), 3),
    )


def _plan(shards: Iterable[Shard], revision: str) -> Plan:
    made = tuple(shards)
    if len(made) > MATRIX_LIMIT:
        raise UsageError(
            f"{len(made)} shards come out, and a matrix holds {MATRIX_LIMIT}: give fewer runners (or nodes) to --pool"
        )
    digest = hashlib.sha256(msgspec.json.encode((PLAN_VERSION, revision, made))).hexdigest()
    return Plan(plan_id=digest[:16], shards=made, revision=revision)


def _refuse_repeats(source: str, what: str, names: Iterable[object]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise UsageError(
            f"{source}: {what} {repeated[0]} stands in it twice; plans are not made by hand, run disttest plan again"
        )
