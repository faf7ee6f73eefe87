"""The plan: the tests of each runner. Made once from one snapshot of timings, and then passed to all shards."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from disttest.errors import NotEnoughDevices, UsageError
from disttest.extras.cluster.allocations import (
    Allocation,
    NodePool,
    allocate,
    expected_makespan_s,
    have_gpus,
    slots_of,
    split_by_time,
)
from disttest.extras.shards.pools import Pool, assign_pools
from disttest.model import UNREADABLE, Frozen, TestCase, is_inside
from disttest.planning.timings import Timings

PLAN_VERSION = 1

# https://docs.github.com/en/actions/reference/limits
MATRIX_LIMIT = 256
"""Jobs in one matrix of GitHub Actions."""

NO_OP_SHARD = 0
"""Shard of a plan without tests: its job runs nothing but tests that were added since."""

VANISHED = "planned, but no longer exists"
"""Note of a shard's run for a planned test that it did not find."""


LEAST_SHARD_S = 300.0
"""Least work, in seconds, for which a lease of its own pays off when each lease is also a workflow job."""


# A shard keeps the nodes and the partition for which its tests were named: with other ones it would find none of them.
class Grant(Frozen):
    """Nodes of a scheduler that a shard asks for."""

    scheduler: str
    partition: str
    nodes: int
    ranks_per_node: int
    spread: int = 1
    """Number of nodes over which worlds are spread that have no number of their own (``--nodes`` of the plan)."""


class Shard(Frozen):
    """Tests of one job."""

    number: int
    """Number of the shard, from 1."""
    name: str
    pool: str
    labels: tuple[str, ...]
    gpus: int
    """GPUs (on a CPU pool: slots) of its runner, or of all nodes that it asks for."""
    tests: tuple[TestCase, ...]
    expected_s: float
    grant: Grant | None = None
    """None if the job itself runs the tests."""

    @property
    def gpu_minutes(self) -> float:
        """Expected GPU minutes of the runner, including idle GPUs."""
        return self.expected_s / 60 * self.gpus


# One plan for all shards: shards that compute their own part from their own timings overlap or lose tests.
# docs/decisions/0030-plan-once.md
class Plan(Frozen):
    """Content of ``plan.json``."""

    plan_id: str
    """Digest of the other fields."""
    # Whole test cases, so that the tests of a shard that never reported become errors with the right names.
    shards: tuple[Shard, ...]
    revision: str = ""
    """Commit that the plan was made for; empty if unknown."""
    version: int = PLAN_VERSION

    @property
    def last(self) -> Shard | None:
        """The last shard that has tests; None if there is nothing to run."""
        return next((shard for shard in reversed(self.shards) if shard.tests), None)

    @property
    def is_changed(self) -> bool:
        """Whether the content differs from that of ``disttest plan``: a run masks secrets in its copy."""
        return self.plan_id != _digest(self.shards, self.revision)


class ShardFacts(Frozen):
    """Facts that a shard's run records in ``Invocation.data``, and ``disttest merge`` for all of them."""

    vanished: tuple[str, ...] = ()
    """Node ids of planned tests that it did not find, so that they are not owed."""


class Selection(Frozen):
    """Node ids of the tests that one shard runs of those that exist now."""

    run: tuple[str, ...]
    """Tests in the order of collection, including ``new``."""
    vanished: tuple[str, ...]
    """Tests planned for this shard that no longer exist."""
    new: tuple[str, ...]
    """Tests in no shard of the plan; this shard runs them."""

    def notes(self, skipped: Collection[str] = ()) -> tuple[tuple[str, str], ...]:
        """Return ``(nodeid, message)`` pairs for the journal and the user.

        Args:
            skipped: files, classes and folders that skipped themselves: their tests may still exist.
        """
        lost = (test for test in self.vanished if not any(is_inside(test, each) for each in skipped))
        gone = ((nodeid, VANISHED) for nodeid in lost)
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

    A runner without tests gets no shard. On the nodes of a scheduler a shard is an allocation: a lease of one node, or
    the nodes of worlds that span them, the largest first. ``spread`` records ``--nodes`` in such shards.

    Raises:
        NotEnoughDevices: no pool holds a world size.
        UsageError: no pool is given, or there are more shards than a matrix may have.
    """
    if not pools:
        raise UsageError("a plan needs runners: give --pool NAME:GPUS:RUNNERS, --shards N or --by world-size")
    by_pool = assign_pools(tests, pools)
    shards: list[Shard] = []
    # Tests that are added later go to the last shard; a scheduler finds nodes for any of them.
    for pool in sorted(pools, key=lambda pool: (bool(pool.scheduler), pool.gpus, pool.name)):
        made = _granted if pool.scheduler else _on_runners
        shards += made(pool, by_pool[pool.name], timings, len(shards), spread)
    return _plan(shards, revision)


def plan_equal_shards(
    tests: Sequence[TestCase], timings: Timings, *, shards: int, slots: int = 0, revision: str = ""
) -> Plan:
    """Plan tests on a number of equal runners; make exactly that many shards, some perhaps empty.

    ``slots`` is the number of ranks that a runner runs at a time; by default that of the largest world.

    Raises:
        UsageError: the number of shards is not between 1 and the limit of a matrix, or slots is negative.
        NotEnoughDevices: a world is larger than ``slots``.
    """
    if not 1 <= shards <= MATRIX_LIMIT:
        raise UsageError(f"--shards must be between 1 and {MATRIX_LIMIT}, not {shards}")
    if slots < 0:
        raise UsageError(f"the slots of a runner must be at least 1, not {slots}")
    on_gpus = have_gpus(tests)
    gpus = slots or max((slots_of(test, on_gpus=on_gpus) for test in tests), default=1)
    pool = Pool(name="shard", gpus=gpus, runners=shards, cost_per_minute=gpus, labels=())
    # Only for its error, if a world is wider than the runners.
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
    """Select the tests that a shard runs of those that exist now.

    A test in no shard goes to the last shard that has tests; its runner is one of those with the most GPUs.

    Raises:
        UsageError: the plan has no such shard.
    """
    shard = find_shard(plan, number)
    existing = tuple(tests)
    # The no-op shard of an empty plan has no tests, and takes all that were added since.
    planned = {test.nodeid for test in shard.tests} if shard else set()
    everywhere = {test.nodeid for each in plan.shards for test in each.tests}
    takes_new = number == (plan.last.number if plan.last else NO_OP_SHARD)
    # A repetition runs with its test, which a plan without repetitions names.
    named = {test.nodeid: test.nodeid if test.nodeid in everywhere else test.selected_by for test in existing}
    new = tuple(nodeid for nodeid, name in named.items() if takes_new and name not in everywhere)
    mine = planned.union(named[nodeid] for nodeid in new)
    found = {test.nodeid for test in existing}
    return Selection(
        run=tuple(nodeid for nodeid, name in named.items() if name in mine),
        vanished=tuple(test.nodeid for test in shard.tests if test.nodeid not in found) if shard else (),
        new=new,
    )


def find_shard(plan: Plan, number: int) -> Shard | None:
    """Return the shard of that number; None for the no-op shard of a plan without tests.

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
    """Refuse a plan that was made for another commit; unknown commits pass.

    Raises:
        UsageError: both commits are known and differ.
    """
    if plan.revision and revision and plan.revision != revision:
        raise UsageError(
            f"the plan was made for {plan.revision}, not for {revision}; run disttest plan again, "
            "or set DISTTEST_STALE_PLAN=true to run the tests that still exist (new tests go to the last shard)"
        )


def check_unchanged(plan: Plan, source: Path) -> None:
    """Refuse a plan that is not as ``disttest plan`` wrote it: tests with other names would not run.

    Raises:
        UsageError: it was changed.
    """
    if plan.is_changed:
        raise UsageError(
            f"{source} was changed since it was written, as the copy in the results of a run with secrets is; "
            "give the file of disttest plan"
        )


def check_device(plan: Plan, number: int, selection: Selection, device: str) -> None:
    """Refuse a shard that was planned for another device: all its tests would be missing, and the run would be green.

    Args:
        plan: the plan.
        number: number of the shard.
        selection: result of :func:`select` on this machine.
        device: device of the ranks on this machine.

    Raises:
        NotEnoughDevices: the shard has worlds on GPUs, and there are none.
        UsageError: it was planned for the CPU, and none of its worlds exists on GPUs.
    """
    shard = find_shard(plan, number)
    worlds = {test.nodeid: test.world for test in shard.tests if test.world} if shard else {}
    on_gpus = next((world for world in worlds.values() if world.device != "cpu"), None)
    if shard is None or not worlds:
        return
    if on_gpus and device == "cpu":
        # Names of tests contain the backend: a plan made without GPUs names tests that GPU runners do not have. All of
        # them would be missing, and the tests that they do have would be new, and run in the last shard.
        raise NotEnoughDevices(
            f"shard {number} of the plan has worlds on GPUs ({on_gpus}), and this run has no GPU: "
            f"give it a runner of the pool {shard.pool!r} (see disttest doctor), or plan with --device cpu"
        )
    # Only if all are gone: a test with the mark device("cpu") has the same name with and without GPUs.
    if not on_gpus and device != "cpu" and set(worlds) <= set(selection.vanished):
        raise UsageError(
            f"shard {number} was planned for the CPU ({next(iter(worlds.values()))}), and this run has GPUs: "
            "plan with --device cuda, or run with --device cpu"
        )


def encode_plan(plan: Plan) -> bytes:
    """Encode ``plan.json``."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"


def decode_plan(data: bytes, source: str = "plan.json") -> Plan:
    """Read ``plan.json``.

    Raises:
        UsageError: it is not a plan, of another version, or contradicts itself.
    """
    try:
        # First alone: a plan of another version may not fit the type, and the error would be about a field.
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != PLAN_VERSION:
            raise UsageError(
                f"{source} is a plan of version {version}, and this disttest reads version {PLAN_VERSION}: "
                "run disttest plan again with the disttest that runs the shards"
            )
        plan = msgspec.json.decode(data, type=Plan)
    except UNREADABLE as error:
        raise UsageError(f"{source} is not a plan: {error}; write one with disttest plan") from error
    repeated = [
        number for number, count in Counter(shard.number for shard in plan.shards).items() if count > 1
    ]
    if repeated:
        raise UsageError(f"{source} lists shard {repeated[0]} twice; regenerate it with disttest plan")
    return plan


def render_matrix(plan: Plan) -> dict[str, Any]:
    """Render the plan as a matrix of GitHub Actions: ``{"include": [...]}``, one entry for each shard that has tests.

    A matrix must not be empty, so a plan without tests has one entry with ``"no_op": true`` and shard 0. A workflow may
    skip it, and ``disttest run --plan plan.json --shard 0`` runs nothing.
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
    # No other limit: each shard is a job of the matrix.
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
            f"the plan has {len(made)} shards, but a matrix holds {MATRIX_LIMIT}; give fewer runners (or nodes) to --pool"
        )
    return Plan(plan_id=_digest(made, revision), shards=made, revision=revision)


def _digest(shards: tuple[Shard, ...], revision: str) -> str:
    # As a reader gets them: a whole number of seconds becomes a float.
    shards = msgspec.json.decode(msgspec.json.encode(shards), type=tuple[Shard, ...])
    # The id identifies the content: shards of another plan are refused by a merge.
    return hashlib.sha256(msgspec.json.encode((PLAN_VERSION, revision, shards))).hexdigest()[:16]
