"""What a trivial test costs (one all_reduce over gloo): disttest beside the harnesses people use today.

    python bench/overhead.py [--sizes 1,2,4,8] [--tests 10]

Each harness runs the same body N times and once more with a single test; the difference divided by N - 1 is the
cost of a test, so that imports and start-up count for neither. Prints one table with ratios, the machine's load,
and the private memory of ranks. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 600.0
"""No single command of this script takes longer, unless it hangs."""
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


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(__file__).parents[1] / "entrypoint"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), "GLOO_SOCKET_IFNAME": "lo"}


def run(argv: list[str], folder: Path) -> tuple[float, str]:
    """Wall seconds and output of a command that must succeed."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as late:
        sys.exit(f"{' '.join(argv)} did not end within {LIMIT_S:g} s:\n{late.stdout}{late.stderr}")
    if done.returncode:
        sys.exit(f"{' '.join(argv)} failed:\n{done.stdout}{done.stderr}")
    return time.monotonic() - began, done.stdout


def pytest_seconds(source: str, folder: Path, options: list[str]) -> float:
    (folder / "test_bench.py").write_text(source)
    argv = [sys.executable, "-m", "pytest", *PLUGIN, *options, "test_bench.py"]
    return run(argv, folder)[0]


def per_test(template: str, size: int, tests: int, folder: Path, options: list[str], repeat: int) -> float:
    """Seconds per test: (time of N tests - time of one) / (N - 1), median of some repetitions."""
    costs = []
    for _ in range(repeat):
        one = pytest_seconds(template.format(size=size, tests=1), folder, options)
        many = pytest_seconds(template.format(size=size, tests=tests), folder, options)
        costs.append((many - one) / (tests - 1))
    return statistics.median(costs)


def torchrun_seconds(size: int, folder: Path, repeat: int) -> float:
    """Seconds of one test: torchrun starts everything anew each time."""
    (folder / "test_bench.py").write_text(TORCHRUN.format(size=size))
    argv = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={size}", "--standalone"]
    argv += ["-m", "pytest", *PLUGIN, "-p", "no:disttest", "test_bench.py"]
    return statistics.median(run(argv, folder)[0] for _ in range(repeat))


def rows(size: int, tests: int, folder: Path, repeat: int) -> list[tuple[str, float]]:
    ours = ["-p", plugin()]
    theirs = ["-p", "no:disttest"]
    many = tests * 20  # one warm test is shorter than the noise of a start-up
    return [
        (
            "disttest warm",
            per_test(DISTTEST, size, many, folder, [*ours, "--disttest-isolation=warm"], repeat),
        ),
        (
            "disttest fresh",
            per_test(DISTTEST, size, tests * 3, folder, [*ours, "--disttest-isolation=fresh"], repeat),
        ),
        ("torch MultiProcContinuousTest", per_test(CONTINUOUS, size, many, folder, theirs, repeat)),
        (
            "torch MultiProcessTestCase (spawn)",
            per_test(MULTI_PROCESS, size, max(2, tests // 3), folder, theirs, 1),
        ),
        ("torchrun -m pytest", torchrun_seconds(size, folder, repeat)),
    ]


def plugin() -> str:
    from importlib import metadata

    installed = {entry.name for entry in metadata.entry_points(group="pytest11")}
    return "disttest" if "disttest" in installed else "disttest.plugin"


def memory(folder: Path) -> None:
    (folder / "test_memory.py").write_text(MEMORY)
    (folder / "spawned.py").write_text(SPAWNED_MEMORY)
    results = folder / "results"
    run(
        [
            sys.executable,
            "-m",
            "pytest",
            *PLUGIN,
            "-p",
            plugin(),
            f"--disttest-results={results}",
            "test_memory.py",
        ],
        folder,
    )
    forked = [line for log in results.rglob("rank*.log") for line in log.read_text().splitlines()]
    _, spawned = run([sys.executable, "spawned.py"], folder)
    ours, theirs = mebibytes(forked), mebibytes(spawned.splitlines())
    print("\nmemory per rank at 8 ranks, MiB (median): private / PSS")
    print(f"  disttest forked ranks      {ours[0]:8.1f} {ours[1]:8.1f}")
    print(f"  torch.multiprocessing spawn{theirs[0]:8.1f} {theirs[1]:8.1f}")
    print(f"  ratio                      {theirs[0] / ours[0]:8.1f} {theirs[1] / ours[1]:8.1f}")


def mebibytes(lines: list[str]) -> tuple[float, float]:
    values = [tuple(map(int, line.split()[1:])) for line in lines if line.startswith("MEMORY")]
    return tuple(statistics.median(value[i] for value in values) / 1024 for i in (0, 1))  # type: ignore[return-value]


def start_up(folder: Path, repeat: int) -> None:
    smoke = [sys.executable, "-m", "disttest", "smoke", "--results", str(folder / "smoke-results")]
    bare = [sys.executable, "-c", "import torch"]
    run(bare, folder)
    ours = statistics.median(run(smoke, folder)[0] for _ in range(repeat))
    theirs = statistics.median(run(bare, folder)[0] for _ in range(repeat))
    print(
        f"\nstart-up: disttest smoke {ours:.2f} s, import torch {theirs:.2f} s, "
        f"budget 1.3 x import + 1 s = {1.3 * theirs + 1:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="1,2,4,8")
    parser.add_argument("--tests", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory(prefix="disttest-bench-") as name:
        folder = Path(name)
        print(f"{'ms per test':36}{'ranks':>6}{'ms':>10}{'x fresh':>10}{'x warm':>10}")
        for size in map(int, arguments.sizes.split(",")):
            costs = rows(size, arguments.tests, folder, arguments.repeat)
            warm, fresh = costs[0][1], costs[1][1]
            for label, seconds in costs:
                print(
                    f"{label:36}{size:6}{seconds * 1000:10.1f}{seconds / fresh:10.1f}{seconds / warm:10.1f}",
                    flush=True,
                )
        memory(folder)
        start_up(folder, arguments.repeat)
        print(f"load at the end {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
