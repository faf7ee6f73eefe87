"""What a run on a pool of up to 1,000 nodes comes to: makespan, what the engine is asked, sizes. Simulated, on paper.

    python bench/cluster.py
    python bench/cluster.py --nodes 10 100 --tests-per-node 200

The division into jobs is the real one (`disttest.cluster.division`), and so are the bytes of the journal. The engine is
a model: jobs start in the order of submission on nodes that are free, and cost what `Costs` says, to be set from one's
own measurements. Of 40 tests one spans two nodes. The lower bound is all node-seconds of work over all nodes.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from disttest.cluster.division import Division, divide
from disttest.cluster.job import JobKind, JobShape, JobSpec
from disttest.cluster.launcher import Capacity
from disttest.cluster.slurm import FIRST_POLL_S, LONGEST_POLL_S
from disttest.model import Outcome, RankEnd, RankRecord, TestCase, TestResult, WorldShape
from disttest.planning.timings import Timings
from disttest.results.events import TestCollected, TestFinished

SPANNING_EACH = 40
CHECKS = 3
"""Questions to the engine for each job, the polls aside: the submission, the allocation's step, the last look."""


class Costs(NamedTuple):
    """Seconds; assumed, see the docstring."""

    allocation_s: float = 0.1
    start_s: float = 10.0
    """Interpreters, torch, collection."""


def a_test(number: int, source: random.Random, ranks: int) -> TestCase:
    nodes = 2 if number % SPANNING_EACH == 0 else 1
    size = ranks * nodes if nodes > 1 else source.choice([1, 2, 4, ranks])
    name = f"test_{number}[{size}xnccl]"
    return TestCase(
        nodeid=f"tests/test_{number // 40}.py::{name}",
        slug=f"test-{number}-0123456789",
        classname=f"tests.test_{number // 40}",
        name=name,
        file=f"tests/test_{number // 40}.py",
        line=number,
        suite="tests",
        world=WorldShape(size=size, backend="nccl", device="cuda", nodes=nodes),
    )


def polls(waited_s: float) -> int:
    """How often a job that waits so long is looked up."""
    count, pause_s, at_s = 0, FIRST_POLL_S, FIRST_POLL_S
    while at_s < waited_s:
        count += 1
        pause_s = min(LONGEST_POLL_S, pause_s * 1.5)
        at_s += pause_s
    return count


class Outcomes(NamedTuple):
    makespan_s: float
    asked: int
    busiest_per_s: float


def run_engine(
    jobs: Sequence[JobSpec], work_s: Sequence[float], nodes: int, at_once: int, costs: Costs
) -> Outcomes:
    """First come, first served; the client hands over ``at_once`` jobs and the next when one ends."""
    free, now_s, asked, waiting = nodes, 0.0, 0, list(range(len(jobs)))
    running: list[tuple[float, int]] = []
    handed: list[tuple[float, int]] = []
    moments: list[float] = []
    while waiting or handed or running:
        while waiting and len(handed) + len(running) < at_once:
            handed.append((now_s, waiting.pop(0)))
            moments.append(now_s)
        while handed and jobs[handed[0][1]].shape.nodes <= free:
            since_s, index = handed.pop(0)
            free -= jobs[index].shape.nodes
            asked += CHECKS + polls(now_s - since_s)
            heappush(running, (now_s + costs.allocation_s + costs.start_s + work_s[index], index))
        now_s, index = heappop(running)
        moments.append(now_s)
        free += jobs[index].shape.nodes
    busiest = max((sum(1 for m in moments if at <= m < at + 1) for at in sorted(set(moments))), default=0)
    return Outcomes(now_s, asked, float(busiest))


def journal_bytes(test: TestCase) -> int:
    """Of one test that passed."""
    size = test.world.size if test.world else 1
    ranks = tuple(
        RankRecord(
            rank=rank,
            end=RankEnd.REPORTED,
            outcome=Outcome.PASSED,
            pid=12345,
            log=f"logs/{test.slug}/attempt-1/rank{rank}.log",
            durations_s={"setup": 0.0123, "call": 0.1234, "teardown": 0.0012},
            node="node0123",
        )
        for rank in range(size)
    )
    result = TestResult(
        nodeid=test.nodeid, outcome=Outcome.PASSED, ranks=ranks, world_id="j12.w34", duration_s=0.1234
    )
    events = (TestCollected(at_s=1.7e9, test=test), TestFinished(at_s=1.7e9, result=result))
    return sum(len(msgspec.json.encode(event)) + 1 for event in events)


def one_pool(nodes: int, per_node: int, seconds: float, at_once: int) -> tuple[str, ...]:
    source, gpus = random.Random(nodes), 8
    tests = [a_test(number, source, gpus) for number in range(nodes * per_node)]
    capacity = Capacity(nodes=nodes, gpus_per_node=gpus, cpus_per_node=64, engine="model")
    template = JobSpec(
        job_id="",
        run_id="bench",
        kind=JobKind.LEASE,
        shape=JobShape(nodes=1, ranks_per_node=1),
        tests=(),
        targets=("tests",),
        limit_s=0.0,
    )
    started_s = time.perf_counter()
    jobs = divide(tests, Timings(), capacity=capacity, division=Division(jobs=at_once), template=template)
    planned_s = time.perf_counter() - started_s
    takes_s = [
        sum(seconds * min(test.world.ranks_per_node, gpus) / gpus for test in job.tests if test.world)
        for job in jobs
    ]
    outcome = run_engine(jobs, takes_s, nodes, at_once, Costs())
    bound_s = sum(took * job.shape.nodes for took, job in zip(takes_s, jobs, strict=True)) / nodes
    journal = sum(map(journal_bytes, tests))
    return (
        str(nodes),
        str(len(tests)),
        str(len(jobs)),
        f"{planned_s:.1f}",
        f"{outcome.makespan_s:.0f}",
        f"{outcome.makespan_s / bound_s:.2f}",
        str(outcome.asked),
        f"{outcome.asked / outcome.makespan_s:.2f}",
        f"{outcome.busiest_per_s:.0f}",
        f"{max(len(msgspec.json.encode(job)) for job in jobs) / 1e6:.2f}",
        f"{journal / 1e6:.1f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 10, 100, 1000])
    parser.add_argument("--tests-per-node", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a test that fills a node")
    parser.add_argument("--jobs", type=int, default=256, help="with the engine at once")
    arguments = parser.parse_args()
    table = Table(
        *(
            "nodes",
            "tests",
            "jobs",
            "planned in s",
            "makespan s",
            "over bound",
            "asked",
            "per s",
            "busiest s",
        ),
        *("largest job MB", "journal MB"),
    )
    for nodes in arguments.nodes:
        table.add_row(*one_pool(nodes, arguments.tests_per_node, arguments.seconds, arguments.jobs))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
