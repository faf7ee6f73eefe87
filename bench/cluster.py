"""What a run on a pool of up to 1,000 nodes comes to: makespan, what the scheduler is asked, sizes. Simulated, on paper.

    python bench/cluster.py
    python bench/cluster.py --nodes 10 100 --tests-per-node 200 --jobs 16 1024

The division into jobs is the real one (`disttest.extras.cluster.client.cluster_session`), and so are the bytes of the journal,
of the jobs and of the reports. The scheduler is a model: jobs start in the order of submission, none overtakes another,
on GPUs that are free; they cost what `Costs` says, to be set from one's own measurements. Durations of tests are log-normal; the
planner is told others that are off by about 20 %. Of 40 tests one spans two nodes. The lower bound is all GPU-seconds of work
over all GPUs.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from disttest.extras.cluster.allocations import expected_makespan_s
from disttest.extras.cluster.client.cluster_session import Division, divide, jobs_at_once
from disttest.extras.cluster.protocol.job import JobKind, JobShape, JobSpec
from disttest.extras.cluster.protocol.launcher import Capacity
from disttest.extras.slurm.limits import SLURM_FIRST_POLL_S, SLURM_LONGEST_POLL_S
from disttest.model import Hardware, Isolation, Outcome, RankEnd, RankRecord, TestCase, TestResult, WorldShape
from disttest.planning.batches import build_batches
from disttest.planning.timings import Sample, Timings
from disttest.reports.write import write_reports
from disttest.results.events import Event, RunFinished, RunStarted, TestCollected, TestFinished
from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, Journal, read_events

GPUS = 8
SPANNING_EACH = 40
MEDIAN_S, SPREAD, ERROR = 5.0, 1.0, 0.2
"""Of a test's duration: its median, and the standard deviations of its logarithm and of the planner's error."""
CLIENT_ASKS = 3
"""Of the scheduler, once for each run: its version, its nodes, what dead clients have left."""


class Costs(NamedTuple):
    """Seconds; assumed, see above."""

    allocation_s: float = 0.1
    start_s: float = 10.0
    """Interpreters, torch, collection."""


def a_test(number: int, source: random.Random) -> TestCase:
    nodes = 2 if number % SPANNING_EACH == 0 else 1
    size = GPUS * nodes if nodes > 1 else source.choice([1, 2, 4, GPUS])
    shape = WorldShape(size=size, backend="nccl", device="cuda", nodes=nodes)
    name, file = f"test_{number}[{shape}]", f"tests/test_{number // 40}.py"
    return TestCase(
        nodeid=f"{file}::{name}",
        slug=f"test-{number}-0123456789",
        classname=f"tests.test_{number // 40}",
        name=name,
        file=file,
        line=number,
        suite="tests",
        world=shape,
        isolation=Isolation.WARM,
    )


class Known(NamedTuple):
    """How long tests take, and what the planner believes."""

    truth: Timings
    belief: Timings


def durations(tests: Sequence[TestCase], source: random.Random) -> Known:
    taken = [source.lognormvariate(math.log(MEDIAN_S), SPREAD) for _ in tests]
    believed = [seconds * source.lognormvariate(0, ERROR) for seconds in taken]
    return Known(*(Timings(map(_sample, tests, each)) for each in (taken, believed)))


def _sample(test: TestCase, seconds: float) -> Sample:
    assert test.world is not None
    return Sample(test=test.nodeid, duration_s=seconds, size=test.world.size, backend=test.world.backend)


def takes_s(job: JobSpec, truth: Timings) -> float:
    """How long a job works, once its nodes are up."""
    if job.kind is JobKind.LEASE:
        return expected_makespan_s(job.tests, truth, slots=job.shape.ranks_per_node)
    return sum(batch.expected_s for batch in build_batches(job.tests, truth, slots=1))


class Scheduler:
    """First come, first served, on the GPUs of equal nodes; counts what it is asked, and when."""

    def __init__(self, nodes: int, costs: Costs) -> None:
        self.free = [GPUS] * nodes
        self.costs = costs
        self.asked: list[float] = [0.0] * CLIENT_ASKS
        self.now_s = 0.0
        self.most_at_once = 0
        self._polls: list[tuple[float, float]] = []

    def run(self, jobs: Sequence[JobSpec], work_s: Sequence[float], at_once: int) -> None:
        """The client hands over ``at_once`` jobs, and the next when one ends."""
        waiting, handed = list(range(len(jobs)))[::-1], list[tuple[float, int]]()
        running: list[tuple[float, int, list[int]]] = []
        while waiting or handed or running:
            while waiting and len(handed) + len(running) < at_once:
                self.asked.append(self.now_s)
                handed.append((self.now_s, waiting.pop()))
            self.most_at_once = max(self.most_at_once, len(handed) + len(running))
            while handed and (held := self._take(jobs[handed[0][1]].shape)):
                since_s, index = handed.pop(0)
                self._polls += self._polled(since_s)
                self.asked.append(self.now_s)  # its step
                end_s = self.now_s + self.costs.allocation_s + self.costs.start_s + work_s[index]
                heappush(running, (end_s, index, held))
            self.now_s, index, held = heappop(running)
            self.asked += [self.now_s, self.now_s]  # its end, and our last look
            for node in held:
                self.free[node] += jobs[index].shape.gpus_per_node
        self.ask_the_queue()

    def _take(self, shape: JobShape) -> list[int]:
        """Nodes for a job, the fullest that do; none if there are too few."""
        fitting = [node for node, free in enumerate(self.free) if free >= shape.gpus_per_node]
        if len(fitting) < shape.nodes:
            return []
        chosen = sorted(fitting, key=lambda node: self.free[node])[: shape.nodes]
        for node in chosen:
            self.free[node] -= shape.gpus_per_node
        return chosen

    def _polled(self, since_s: float) -> Iterator[tuple[float, float]]:
        """When a job that waited wanted to know of itself, ever less often, and how fresh an answer had to be."""
        pause_s, at_s = SLURM_FIRST_POLL_S, since_s + SLURM_FIRST_POLL_S
        while at_s < self.now_s:
            pause_s = min(SLURM_LONGEST_POLL_S, pause_s * 1.5)
            yield at_s, pause_s / 2
            at_s += pause_s

    def ask_the_queue(self) -> None:
        """Jobs that want to know share an answer that is fresh enough, as `SlurmQueue` has it."""
        last_s = -math.inf
        for at_s, fresh_s in sorted(self._polls):
            if at_s - last_s >= fresh_s:
                self.asked.append(at_s)
                last_s = at_s

    @property
    def busiest_per_s(self) -> int:
        """Questions in the second that has most of them, the first one left out: its burst is ``at_once``."""
        seconds = Counter(int(at_s) for at_s in self.asked if at_s >= 1)
        return max(seconds.values(), default=0)


def events(tests: Sequence[TestCase]) -> Iterator[Event]:
    """The journal of a run in which all passed."""
    at_s = 1.7e9
    yield RunStarted(
        at_s=at_s, run_id="b", argv=(), root="/", hardware=Hardware(cpus=1), slots=0, disttest="0"
    )
    for test in tests:
        yield TestCollected(at_s=at_s, test=test)
    for test in tests:
        yield TestFinished(at_s=at_s, result=a_pass(test))
    yield RunFinished(at_s=at_s, exit_code=0)


def a_pass(test: TestCase) -> TestResult:
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
        for rank in range(test.world.size if test.world else 1)
    )
    return TestResult(
        nodeid=test.nodeid, outcome=Outcome.PASSED, ranks=ranks, world_id="j12.w34", duration_s=0.1234
    )


def sizes(tests: Sequence[TestCase]) -> dict[str, float]:
    """MB of the journal and of the reports that are made of it, without the logs."""
    with tempfile.TemporaryDirectory(prefix="disttest-bench-") as folder:
        results = Path(folder)
        journal = Journal(results / FILE_NAME)
        for event in events(tests):
            journal.append(event)
        journal.close()
        write_reports(fold(read_events(results / FILE_NAME)), results)
        return {path.name: path.stat().st_size / 1e6 for path in results.iterdir() if path.is_file()}


def one_pool(nodes: int, per_node: int, asked: int) -> tuple[str, ...]:
    source = random.Random(nodes)
    tests = [a_test(number, source) for number in range(nodes * per_node)]
    known = durations(tests, source)
    template = JobSpec(
        job_id="",
        run_id="bench",
        kind=JobKind.LEASE,
        shape=JobShape(nodes=1, ranks_per_node=1),
        tests=(),
        targets=("tests",),
        limit_s=0.0,
    )
    capacity = Capacity(nodes=nodes, gpus_per_node=GPUS, cpus_per_node=64, scheduler="model")
    at_once = jobs_at_once(asked, capacity)
    division = Division(jobs=at_once)
    jobs = divide(tests, known.belief, capacity=capacity, division=division, template=template)
    scheduler = Scheduler(nodes, Costs())
    scheduler.run(jobs, [takes_s(job, known.truth) for job in jobs], at_once)
    gpu_s = sum(known.truth.expect(test) * test.world.size for test in tests if test.world)
    written = sizes(tests)
    return (
        str(nodes),
        str(len(tests)),
        str(asked or "default"),
        str(len(jobs)),
        f"{scheduler.now_s:.0f}",
        f"{scheduler.now_s * nodes * GPUS / gpu_s:.2f}",
        str(scheduler.most_at_once),
        f"{len(scheduler.asked)}",
        f"{len(scheduler.asked) / scheduler.now_s:.2f}",
        str(scheduler.busiest_per_s),
        f"{max(len(msgspec.json.encode(job)) for job in jobs) / 1e6:.2f}",
        *(f"{written[name]:.1f}" for name in (FILE_NAME, "results.json", "junit.xml", "report.html")),
    )


COLUMNS = (
    *(
        "nodes",
        "tests",
        "--jobs",
        "jobs",
        "makespan s",
        "over bound",
        "at once",
        "asked",
        "per s",
        "busiest s",
    ),
    *("largest job MB", "journal MB", "results MB", "junit MB", "html MB"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 10, 100, 1000])
    parser.add_argument("--tests-per-node", type=int, default=40)
    parser.add_argument(
        "--jobs",
        type=int,
        nargs="+",
        default=[16, 0, 1024],
        help="with the scheduler at once; 0: the default",
    )
    parser.add_argument("--markdown", action="store_true", help="as a table for the docs")
    arguments = parser.parse_args()
    rows = [
        one_pool(nodes, arguments.tests_per_node, at_once)
        for nodes in arguments.nodes
        for at_once in arguments.jobs
    ]
    if arguments.markdown:
        print(*(f"| {' | '.join(row)} |" for row in (COLUMNS, ["--"] * len(COLUMNS), *rows)), sep="\n")
        return
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*row)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
