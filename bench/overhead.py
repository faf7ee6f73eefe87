"""What a trivial test costs (one all_reduce over gloo): disttest beside the harnesses people use today.

    python bench/overhead.py [--sizes 1,2,4,8] [--tests 10] [--only warm,Continuous] [--within 900]

Each harness runs the same body N times and once more with a single test; the difference divided by N - 1 is the
cost of a test, so that imports and start-up count for neither. N is twenty times ``--tests`` where a test costs milliseconds, a
third of it where each test starts processes. Harnesses take turns, so that all meet the same machine. Prints one table
with ratios, the machine's load, and the private memory of ranks; each command as it ends goes to standard error. After
``--within`` seconds what is missing is left out. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from disttest.host.descendants import kill_descendants
from disttest.host.process import adopt_orphans

PLUGIN = ["-p", "no:cacheprovider", "-q"]

DISTTEST = """
import pytest, torch
import torch.distributed as dist

@pytest.mark.world_size({size})
@pytest.mark.parametrize("number", range({tests}))
def test_all_reduce(world, number):
    x = torch.ones(8)
    dist.all_reduce(x)
    assert x[0] == {size}
"""

MULTI_PROCESS = """
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

class TestAllReduce(MultiProcessTestCase):
    world_size = {size}

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def body(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        x = torch.ones(8)
        dist.all_reduce(x)
        assert x[0] == {size}

for number in range({tests}):
    setattr(TestAllReduce, f"test_all_reduce_{{number}}", lambda self: self.body())
"""

CONTINUOUS = """
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest

class TestAllReduce(MultiProcContinuousTest):
    world_size = {size}

    @classmethod
    def backend_str(cls):
        return "gloo"

    @classmethod
    def device_type(cls):
        return "cpu"

    def body(self):
        x = torch.ones(8)
        dist.all_reduce(x)
        assert x[0] == {size}

for number in range({tests}):
    setattr(TestAllReduce, f"test_all_reduce_{{number}}", lambda self: self.body())
"""

TORCHRUN = """
import torch
import torch.distributed as dist

def test_all_reduce():
    dist.init_process_group("gloo")
    x = torch.ones(8)
    dist.all_reduce(x)
    assert x[0] == {size}
    dist.destroy_process_group()
"""

MEMORY = """
import os, pathlib, pytest
import torch.distributed as dist

def private_kib():
    total = 0
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith(("Private_Clean", "Private_Dirty", "Pss:")):
            name, value = line.split()[:2]
            yield name.rstrip(":"), int(value)

@pytest.mark.world_size(8)
def test_memory(world):
    dist.barrier()
    sizes = dict(private_kib())
    print("MEMORY", sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Pss"])
    dist.barrier()
"""

SPAWNED_MEMORY = """
import os, sys, tempfile
import torch, torch.distributed as dist, torch.multiprocessing as mp

def rank_main(rank, path):
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=8)
    dist.barrier()
    sizes = {}
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith(("Private_Clean", "Private_Dirty", "Pss:")):
            name, value = line.split()[:2]
            sizes[name.rstrip(":")] = int(value)
    print("MEMORY", sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Pss"], flush=True)
    dist.barrier()

if __name__ == "__main__":
    mp.spawn(rank_main, args=(tempfile.mktemp(),), nprocs=8)
"""


class OutOfTimeError(Exception):
    """The time that was given is over."""


class Clock:
    """Runs commands until the time is over."""

    def __init__(self, within_s: float) -> None:
        self._until_s = time.monotonic() + within_s

    def run(self, argv: Sequence[str], folder: Path, name: str = "") -> tuple[float, str]:
        """Wall seconds and output of a command that must succeed."""
        began_s = time.monotonic()
        try:
            done = subprocess.run(
                argv,
                cwd=folder,
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
                timeout=max(0.1, self._until_s - began_s),
            )
        except subprocess.TimeoutExpired:
            raise OutOfTimeError from None
        finally:
            kill_descendants()  # the ranks of others go on, and want the processors of what is measured next
        if done.returncode:
            sys.exit(f"{' '.join(argv)} failed:\n{done.stdout}{done.stderr}")
        took_s = time.monotonic() - began_s
        print(f"{took_s:8.1f} s  {name or ' '.join(argv[:4])}", file=sys.stderr, flush=True)
        return took_s, done.stdout


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(__file__).parents[1] / "entrypoint"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), "GLOO_SOCKET_IFNAME": "lo"}


class Harness(NamedTuple):
    """One way to run tests."""

    name: str
    template: str
    options: tuple[str, ...]
    many: Callable[[int], int]
    """From ``--tests``: how many of them are one measurement."""
    rounds: Callable[[int], int] = int
    """From ``--repeat``: how many measurements."""

    def cost_s(self, size: int, tests: int, folder: Path, clock: Clock) -> float:
        """Seconds per test: (time of N tests - time of one) / (N - 1)."""
        count = self.many(tests)
        return (self._wall_s(size, count, folder, clock) - self._wall_s(size, 1, folder, clock)) / (count - 1)

    def _wall_s(self, size: int, tests: int, folder: Path, clock: Clock) -> float:
        (folder / "test_bench.py").write_text(self.template.format(size=size, tests=tests))
        argv = [sys.executable, "-m", "pytest", *PLUGIN, *self.options, "test_bench.py"]
        return clock.run(argv, folder, f"{self.name}, {size} ranks, {tests} tests")[0]


class Launched(Harness):
    """torchrun, which starts everything anew for each test."""

    def cost_s(self, size: int, tests: int, folder: Path, clock: Clock) -> float:  # noqa: ARG002
        """Seconds of one test."""
        (folder / "test_bench.py").write_text(self.template.format(size=size))
        argv = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={size}", "--standalone"]
        argv += ["-m", "pytest", *PLUGIN, *self.options, "test_bench.py"]
        return clock.run(argv, folder, f"{self.name}, {size} ranks")[0]


def harnesses() -> tuple[Harness, ...]:
    ours, theirs = ("-p", plugin()), ("-p", "no:disttest")
    many = 20  # one warm test is shorter than the noise of a start-up
    return (
        Harness("disttest warm", DISTTEST, (*ours, "--disttest-isolation=warm"), lambda tests: tests * many),
        Harness("disttest fresh", DISTTEST, (*ours, "--disttest-isolation=fresh"), lambda tests: tests * 3),
        Harness("torch MultiProcContinuousTest", CONTINUOUS, theirs, lambda tests: tests * many),
        Harness(
            "torch MultiProcessTestCase (spawn)",
            MULTI_PROCESS,
            theirs,
            lambda tests: max(2, tests // 3),
            lambda repeat: min(1, repeat),
        ),
        Launched("torchrun -m pytest", TORCHRUN, theirs, int),
    )


def measure(
    chosen: Sequence[Harness], size: int, tests: int, folder: Path, repeat: int, clock: Clock
) -> dict[str, float]:
    """Seconds per test, medians of what there was time for."""
    costs: dict[str, list[float]] = {harness.name: [] for harness in chosen}
    try:
        for number in range(repeat):
            for harness in chosen:
                if number < harness.rounds(repeat):
                    costs[harness.name].append(harness.cost_s(size, tests, folder, clock))
    except OutOfTimeError:
        print("the time is over: what follows is of fewer rounds", file=sys.stderr)
    return {name: statistics.median(found) for name, found in costs.items() if found}


def show(costs: dict[str, float], size: int) -> None:
    fresh, warm = (costs.get(f"disttest {kind}") for kind in ("fresh", "warm"))
    for name, seconds in costs.items():
        ratios = "".join(f"{seconds / base:10.2f}" if base else f"{'-':>10}" for base in (fresh, warm))
        print(f"{name:36}{size:6}{seconds * 1000:10.2f}{ratios}", flush=True)


def plugin() -> str:
    from importlib import metadata

    installed = {entry.name for entry in metadata.entry_points(group="pytest11")}
    return "disttest" if "disttest" in installed else "disttest.plugin"


def memory(folder: Path, clock: Clock) -> None:
    (folder / "test_memory.py").write_text(MEMORY)
    (folder / "spawned.py").write_text(SPAWNED_MEMORY)
    results = folder / "results"
    argv = [sys.executable, "-m", "pytest", *PLUGIN, "-p", plugin(), f"--disttest-results={results}"]
    clock.run([*argv, "test_memory.py"], folder, "memory, forked")
    forked = [line for log in results.rglob("rank*.log") for line in log.read_text().splitlines()]
    _, spawned = clock.run([sys.executable, "spawned.py"], folder, "memory, spawned")
    ours, theirs = mebibytes(forked), mebibytes(spawned.splitlines())
    print("\nmemory per rank at 8 ranks, MiB (median): private / PSS")
    print(f"  disttest forked ranks      {ours[0]:8.1f} {ours[1]:8.1f}")
    print(f"  torch.multiprocessing spawn{theirs[0]:8.1f} {theirs[1]:8.1f}")
    print(f"  ratio                      {theirs[0] / ours[0]:8.1f} {theirs[1] / ours[1]:8.1f}")


def mebibytes(lines: list[str]) -> tuple[float, float]:
    values = [tuple(map(int, line.split()[1:])) for line in lines if line.startswith("MEMORY")]
    return tuple(statistics.median(value[i] for value in values) / 1024 for i in (0, 1))  # type: ignore[return-value]


def start_up(folder: Path, repeat: int, clock: Clock) -> None:
    smoke = [sys.executable, "-m", "disttest", "smoke", "--results", str(folder / "smoke-results")]
    bare = [sys.executable, "-c", "import torch"]
    clock.run(bare, folder)
    pairs = [(clock.run(smoke, folder)[0], clock.run(bare, folder)[0]) for _ in range(repeat)]
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"\nstart-up: disttest smoke {ours:.2f} s, import torch {theirs:.2f} s: {ours - theirs:.2f} s more")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="1,2,4,8")
    parser.add_argument("--tests", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--within", type=float, default=900.0, help="seconds for all of it")
    parser.add_argument(
        "--only", default="", help="harnesses with this in their names; no memory, no start-up"
    )
    arguments = parser.parse_args()
    adopt_orphans()  # what is left of a harness is ended with it
    clock = Clock(arguments.within)
    parts = arguments.only.split(",")
    chosen = [harness for harness in harnesses() if any(part in harness.name for part in parts)]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory(prefix="disttest-bench-") as name:
        folder = Path(name)
        print(f"{'ms per test':36}{'ranks':>6}{'ms':>10}{'x fresh':>10}{'x warm':>10}", flush=True)
        for size in map(int, arguments.sizes.split(",")):
            show(measure(chosen, size, arguments.tests, folder, arguments.repeat, clock), size)
        try:
            if not arguments.only:
                memory(folder, clock)
                start_up(folder, arguments.repeat, clock)
        except OutOfTimeError:
            print("\nno time was left for all of memory and start-up")
        print(f"load at the end {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
