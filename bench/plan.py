"""How near the scheduler and the planner come to the best possible, beside the policies in use elsewhere.

    python bench/plan.py            everything, some minutes
    python bench/plan.py --instances 20

The measure is makespan over lower bound (the larger of all GPU-seconds over the GPUs and the longest test), where
every test costs its duration, in 200 seeded instances for each number of GPUs. Half of them draw durations from
a log-normal distribution, half from those of torch's own suite in ``bench/data`` (see ``bench/torch_durations.py``).
World sizes are 1, 2, 4 and 8, two being the commonest. The scheduler does not know the durations: it is told an
estimate that is off by a log-normal factor (sigma 0.2, about 20 %), as past runs would tell it.

Policies:

- disttest: the batch scheduler.
- pool: first come, first served over a pool of GPUs in alphabetical order, what fits starts; no durations (torchtitan).
- one world: one world at a time, as a plain pytest or a script of torchrun calls does.
- by size: one job per world size, each with the GPUs that its size needs, all jobs side by side, one test at a time.
- round-robin: tests dealt alphabetically to runners with the GPUs of the widest world; one at a time on each.
"""

from __future__ import annotations

import argparse
import csv
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from disttest.extras.shards.pools import parse_pools
from disttest.extras.shards.shard_plan import encode_plan, plan_shards
from disttest.model import Batch, Isolation, Slot, TestCase, WorldShape
from disttest.planning.schedule import BatchScheduler, Start
from disttest.planning.simulate import lower_bound_s, plain_slots, simulate
from disttest.planning.timings import Sample, Timings

TORCH = Path(__file__).parent / "data" / "torch_gloo_2.csv"
SIZES, WEIGHTS = (1, 2, 4, 8), (2, 5, 2, 1)
TESTS_PER_GPU, LEAST_TESTS = 20, 60
ESTIMATE_SIGMA = 0.2


class Piece(NamedTuple):
    name: str
    size: int
    seconds: float
    estimate_s: float


class Instance(NamedTuple):
    gpus: int
    pieces: list[Piece]

    @property
    def bound_s(self) -> float:
        return lower_bound_s([(piece.seconds, piece.size) for piece in self.pieces], self.gpus)


def log_normal(source: random.Random) -> float:
    """Median 3 s, the slowest in a hundred about 50 s."""
    return source.lognormvariate(1.1, 1.2)


def torch_durations() -> list[float]:
    with TORCH.open(newline="") as file:
        rows = csv.reader(line for line in file if not line.startswith("#"))
        return [float(seconds) for _, _, seconds in rows]


def draw(seed: int, gpus: int, durations: Sequence[float]) -> Instance:
    """Even seeds are log-normal, odd ones have torch's durations."""
    source = random.Random(seed)
    sizes = [size for size in SIZES if size <= gpus]
    pieces = []
    for number in range(max(LEAST_TESTS, TESTS_PER_GPU * gpus)):
        seconds = source.choice(durations) if seed % 2 else log_normal(source)
        size = source.choices(sizes, WEIGHTS[: len(sizes)])[0]
        pieces.append(
            Piece(f"t{number:06}", size, seconds, seconds * source.lognormvariate(0, ESTIMATE_SIGMA))
        )
    source.shuffle(pieces)
    return Instance(gpus, pieces)


def batch_of(piece: Piece) -> Batch:
    shape = WorldShape(size=piece.size, backend="nccl")
    return Batch(
        batch_id=piece.name,
        nodeids=(piece.name,),
        shape=shape,
        isolation=Isolation.FRESH,
        expected_s=piece.estimate_s,
    )


class FirstCome:
    """A pool of GPUs: whatever comes next in the list and fits starts. Knows no durations, reserves nothing."""

    def __init__(self, slots: Iterable[Slot], *, clock: object) -> None:  # noqa: ARG002
        self._free = list(slots)
        self._waiting: list[Batch] = []
        self._running: dict[str, tuple[Slot, ...]] = {}

    def submit(self, batch: Batch) -> None:
        self._waiting.append(batch)

    def due(self) -> Iterable[Start]:
        left: list[Batch] = []
        for position, batch in enumerate(self._waiting):
            if not self._free:
                left += self._waiting[position:]
                break
            if batch.shape.size > len(self._free):
                left.append(batch)
                continue
            slots = tuple(self._free[: batch.shape.size])
            del self._free[: batch.shape.size]
            self._running[batch.batch_id] = slots
            yield Start(batch=batch, slots=slots)
        self._waiting = left

    def ended(self, batch_id: str) -> None:
        self._free += self._running.pop(batch_id)

    def stranded(self) -> tuple[Batch, ...]:
        return ()


def by_disttest(instance: Instance) -> float:
    actual = {piece.name: piece.seconds for piece in instance.pieces}
    return simulate(map(batch_of, instance.pieces), plain_slots(instance.gpus), durations_s=actual).makespan_s


def by_pool(instance: Instance) -> float:
    actual = {piece.name: piece.seconds for piece in instance.pieces}
    batches = map(batch_of, sorted(instance.pieces))
    return simulate(batches, plain_slots(instance.gpus), durations_s=actual, scheduler=FirstCome).makespan_s


def by_one_world(instance: Instance) -> float:
    return sum(piece.seconds for piece in instance.pieces)


def by_size(instance: Instance) -> float:
    """Jobs of all sizes side by side where the machine holds them, wide ones first, else in turns."""
    totals: dict[int, float] = {}
    for piece in instance.pieces:
        totals[piece.size] = totals.get(piece.size, 0.0) + piece.seconds
    jobs = [
        batch_of(Piece(f"size-{size}", size, total, total))
        for size, total in sorted(totals.items(), reverse=True)
    ]
    return simulate(jobs, plain_slots(instance.gpus), scheduler=FirstCome).makespan_s


def by_round_robin(instance: Instance) -> float:
    runners = max(1, instance.gpus // max(piece.size for piece in instance.pieces))
    ordered = sorted(instance.pieces)
    return max(sum(piece.seconds for piece in ordered[runner::runners]) for runner in range(runners))


POLICIES: dict[str, Callable[[Instance], float]] = {
    "disttest": by_disttest,
    "pool": by_pool,
    "one world": by_one_world,
    "by size": by_size,
    "round-robin": by_round_robin,
}


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def compare(instances: int, machines: Sequence[int]) -> Table:
    durations = torch_durations()
    table = Table(title=f"makespan over lower bound, {instances} instances each: median, 95th percentile")
    table.add_column("GPUs", justify="right")
    for name in POLICIES:
        table.add_column(name, justify="right")
    table.add_column("pool / disttest", justify="right")
    for gpus in machines:
        ratios: dict[str, list[float]] = {name: [] for name in POLICIES}
        for seed in range(instances):
            instance = draw(seed, gpus, durations)
            for name, policy in POLICIES.items():
                ratios[name].append(policy(instance) / instance.bound_s)
        cells = [
            f"{statistics.median(values):.3f}  {quantile(values, 0.95):.3f}" for values in ratios.values()
        ]
        gain = [theirs / ours for theirs, ours in zip(ratios["pool"], ratios["disttest"], strict=True)]
        table.add_row(str(gpus), *cells, f"{statistics.median(gain):.2f}  {quantile(gain, 0.95):.2f}")
    return table


def planning_time(tests: int = 20_000, runners: int = 64) -> str:
    """Plan on 64 runners with 8 GPUs each, and say how even it came out."""
    source = random.Random(0)
    cases = [planned_case(number, source) for number in range(tests)]
    samples = [
        Sample(
            test=case.nodeid,
            duration_s=log_normal(source),
            size=case.world.size,
            backend="nccl",
            file=case.file,
        )
        for case in cases
        if case.world
    ]
    timings = Timings(samples)
    pools = parse_pools([f"gpu8:8:{runners}"])
    started_s, started_cpu_s = time.perf_counter(), time.thread_time()
    plan = plan_shards(cases, timings, pools=pools)
    planned_s, cpu_s = time.perf_counter() - started_s, time.thread_time() - started_cpu_s
    size = len(encode_plan(plan))
    work = [(timings.expect(case), case.world.size) for case in cases if case.world]
    bound_s = lower_bound_s(work, 8 * runners)
    longest_s = max(shard.expected_s for shard in plan.shards)
    return (
        f"planning {tests} tests for {8 * runners} GPUs: {planned_s:.2f} s ({cpu_s:.2f} s of CPU), "
        f"plan.json {size / 1e6:.1f} MB; longest shard (with the starts of its worlds) over lower bound (without) "
        f"{longest_s / bound_s:.3f}"
    )


def planned_case(number: int, source: random.Random) -> TestCase:
    size = source.choices(SIZES, WEIGHTS)[0]
    file = f"tests/test_{number // 40}.py"
    return TestCase(
        nodeid=f"{file}::test_{number}[{size}xnccl]",
        slug=f"test-{number}",
        classname=f"tests.test_{number // 40}",
        name=f"test_{number}[{size}xnccl]",
        file=file,
        line=number,
        suite="tests",
        world=WorldShape(size=size, backend="nccl"),
        isolation=Isolation.WARM if number // 40 % 2 else Isolation.FRESH,
    )


class Stopwatch(BatchScheduler):
    """Times every decision, in CPU time: each step of ``due`` and each ``ended``."""

    def __init__(self, *given: object, **named: object) -> None:
        super().__init__(*given, **named)  # type: ignore[arg-type]
        self.took_s: list[float] = []
        watches.append(self)

    def due(self) -> Iterable[Start]:
        steps = super().due()
        while True:
            started_s = time.thread_time()
            start = next(steps, None)
            self.took_s.append(time.thread_time() - started_s)
            if start is None:
                return
            yield start

    def ended(self, batch_id: str, **named: object) -> None:
        started_s = time.thread_time()
        super().ended(batch_id, **named)  # type: ignore[arg-type]
        self.took_s.append(time.thread_time() - started_s)


watches: list[Stopwatch] = []


def decision_time(tests: int = 20_000, gpus: int = 512) -> str:
    """Schedule 20,000 batches on 512 GPUs and time every decision.

    Once without Python's garbage collector, whose full pass over 20,000 batches (tens of ms) is no decision, once with.
    """
    instance = draw(0, gpus, torch_durations())
    source = random.Random(1)
    pieces = (instance.pieces * (tests // len(instance.pieces) + 1))[:tests]
    batches = [
        batch_of(piece._replace(name=f"{n}", estimate_s=log_normal(source))) for n, piece in enumerate(pieces)
    ]
    actual = {str(n): piece.seconds for n, piece in enumerate(pieces)}
    lines = [f"decisions over {tests} batches on {gpus} GPUs, CPU time of each:"]
    for collector in ("off", "on"):
        gc.disable() if collector == "off" else gc.enable()
        simulate(batches, plain_slots(gpus), durations_s=actual, scheduler=Stopwatch)
        took_s = watches.pop().took_s
        lines.append(
            f"  garbage collector {collector}: median {statistics.median(took_s) * 1e6:.0f} µs, 99.9th percentile "
            f"{quantile(took_s, 0.999) * 1e6:.0f} µs, longest {max(took_s) * 1e6:.0f} µs of {len(took_s)}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64, 512])
    arguments = parser.parse_args()
    console = Console(width=140)
    console.print(planning_time())
    console.print(decision_time())
    console.print(compare(arguments.instances, arguments.gpus))


if __name__ == "__main__":
    main()
