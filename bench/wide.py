"""Worlds of hundreds of ranks: time of the first and of a further test, CPU time, and private memory of each rank.

    python bench/wide.py [--sizes 64,256] [--bare 256] [--torchrun 32] [--lazy 0,1] [--limit 300]

A test does an all_reduce and a barrier over gloo on the CPU. The first time is that from the start of the world, before its
first fork, to the end of its first test; the further time is the median of the tests after it, from one end to the next. CPU
seconds are those of the whole run, less those of a run with two ranks. Memory is the private memory of the ranks at the end of
their last test (``/proc/self/smaps_rollup``), as the median over the ranks. ``--lazy`` sets ``TORCH_GLOO_LAZY_INIT`` for
additional runs. torchrun runs the same calls; its time contains the imports of its ranks, which disttest does once.
``--bare`` forks ranks from a process that has imported torch and does nothing but these calls twice. No harness that forks can
be faster than that.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stopwatch import Stopwatch, Took

CALLS = """
import os, torch, torch.distributed as dist

def calls(size):
    x = torch.ones(8)
    dist.all_reduce(x)
    dist.barrier()
    assert x[0] == size

def note_memory(rank):
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    private = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    open(f"{os.environ['WIDE_MEMORY']}/{rank}", "w").write(str(private))
"""
TEST = """
import pytest
from calls import calls, note_memory

@pytest.mark.world_size({size})
@pytest.mark.parametrize("number", range(4))
def test_wide(world, number):
    calls({size})
    if number == 3:
        note_memory(world.rank)
"""
SCRIPT = """
import torch.distributed as dist
from calls import calls, note_memory

dist.init_process_group("gloo")
calls(dist.get_world_size())
note_memory(dist.get_rank())
dist.barrier()
dist.destroy_process_group()
"""

# Lazy connections and a store in a file, as the cheapest that torch offers. The other ranks wait in barrier until the last one
# has come, so that the times of rank 0 are those of the world.
BARE = """
import gc, os, sys, time
import torch
import torch.distributed as dist
from calls import calls, note_memory

size = int(sys.argv[1])
torch.set_num_threads(1)
gc.collect()
gc.freeze()
started_s = time.monotonic()
for rank in range(size):
    if os.fork() == 0:
        dist.init_process_group("gloo", store=dist.FileStore("store", size), rank=rank, world_size=size)
        calls(size)
        first_s = time.monotonic() - started_s
        calls(size)
        if rank == 0:
            print(first_s, time.monotonic() - started_s - first_s)
        note_memory(rank)
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)
for _ in range(size):
    if os.waitstatus_to_exitcode(os.wait()[1]):
        sys.exit("a rank failed")
"""


class Row(NamedTuple):
    """One line of the table; a time is None where the run has none."""

    name: str
    size: int
    first_s: float | None
    further_s: float | None
    cpu_s: float
    private_mib: float


def run(folder: Path, words: Sequence[str], environ: Mapping[str, str], limit_s: float) -> Took:
    """Run a command until it ends, or stop it at the limit; it gets SIGTERM first, so that it ends its ranks."""
    (folder / "memory").mkdir(exist_ok=True)
    watch = Stopwatch()
    command = subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "WIDE_MEMORY": str(folder / "memory"), "OMP_NUM_THREADS": "1", **environ},
        stdout=(folder / "output").open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        code = command.wait(limit_s)
    except subprocess.TimeoutExpired:
        command.terminate()
        command.wait()
        code = 124
    if code:
        sys.exit(f"{' '.join(words)} ended with exit code {code}:\n{(folder / 'output').read_text()[-2000:]}")
    return watch.took()


def private_mib(folder: Path) -> float:
    return statistics.median(int(path.read_text()) for path in (folder / "memory").iterdir()) / 1024


def ends_of_tests(folder: Path) -> tuple[float, list[float]]:
    """When the first world started, and when each test ended (Unix time)."""
    events: list[dict[str, Any]] = [
        json.loads(line) for line in (folder / "results/events.jsonl").read_text().splitlines()
    ]
    started_s = next(each["at_s"] for each in events if each["event"] == "world_started")
    results = [each["result"] for each in events if each["event"] == "test_finished"]
    return started_s, [each["started_at_s"] + each["duration_s"] for each in results]


def run_disttest(size: int, environ: Mapping[str, str], limit_s: float) -> Row:
    with tempfile.TemporaryDirectory(prefix="disttest-bench-") as name:
        folder = Path(name)
        (folder / "calls.py").write_text(CALLS)
        (folder / "test_wide.py").write_text(TEST.format(size=size))
        took = run(folder, ["disttest", "run", "test_wide.py", "--progress", "lines"], environ, limit_s)
        started_s, ends = ends_of_tests(folder)
        further = [after - before for before, after in itertools.pairwise(ends)]
        words = "".join(f" lazy={value}" for value in environ.values())
        return Row(
            f"disttest{words}",
            size,
            ends[0] - started_s,
            statistics.median(further),
            took.cpu_s,
            private_mib(folder),
        )


def run_torchrun(size: int, limit_s: float) -> Row:
    with tempfile.TemporaryDirectory(prefix="disttest-bench-") as name:
        folder = Path(name)
        (folder / "calls.py").write_text(CALLS)
        (folder / "script.py").write_text(SCRIPT)
        words = ["torch.distributed.run", "--standalone", f"--nproc-per-node={size}", "script.py"]
        took = run(folder, words, {}, limit_s)
        return Row("torchrun", size, took.wall_s, None, took.cpu_s, private_mib(folder))


def run_bare(size: int, limit_s: float) -> Row:
    with tempfile.TemporaryDirectory(prefix="disttest-bench-") as name:
        folder = Path(name)
        (folder / "calls.py").write_text(CALLS)
        (folder / "bare.py").write_text(BARE)
        took = run(
            folder, ["bare", str(size)], {"TORCH_GLOO_LAZY_INIT": "1", "GLOO_SOCKET_IFNAME": "lo"}, limit_s
        )
        lines = (folder / "output").read_text().splitlines()
        first_s, further_s = map(float, lines[-1].split())
        return Row("bare forks", size, first_s, further_s, took.cpu_s, private_mib(folder))


def show(row: Row, base_cpu_s: float) -> None:
    times = "".join(f"{'' if each is None else f'{each:.2f}':>10}" for each in (row.first_s, row.further_s))
    cpu_s = max(0.0, row.cpu_s - base_cpu_s)
    print(f"{row.name:<16}{row.size:>6}{times}{cpu_s:>10.1f}{row.private_mib:>10.1f}", flush=True)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=numbers, default=[64, 256])
    parser.add_argument("--bare", type=numbers, default=[], help="sizes to run as bare forks as well")
    parser.add_argument("--torchrun", type=numbers, default=[], help="sizes to run under torchrun as well")
    parser.add_argument("--lazy", type=numbers, default=[], help="values of TORCH_GLOO_LAZY_INIT to compare")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that a run may take")
    given = parser.parse_args()
    base_cpu_s = run_disttest(2, {}, given.limit).cpu_s
    print(f"{'':<16}{'ranks':>6}{'first s':>10}{'further s':>10}{'CPU s':>10}{'MiB/rank':>10}")
    for size in given.sizes:
        show(run_disttest(size, {}, given.limit), base_cpu_s)
        for value in given.lazy:
            show(run_disttest(size, {"TORCH_GLOO_LAZY_INIT": str(value)}, given.limit), base_cpu_s)
    for size in given.bare:
        show(run_bare(size, given.limit), 0.0)
    for size in given.torchrun:
        show(run_torchrun(size, given.limit), 0.0)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
