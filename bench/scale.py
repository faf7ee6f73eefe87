"""Many trivial tests in one run: is the cost of one the same at the end, how much memory does it take, how long do reports take?

    python bench/scale.py [--tests 20000] [--listed 100000]

A run of warm 2-rank tests, each with one all_reduce, is cut into fifths by the times in its journal; the private memory of
the command and of the controller is read meanwhile, and stands in the row of the fifth in which it was highest. Then tests are
listed, beside pytest's own collection of the same file. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

TEST = """
import pytest, torch, torch.distributed as dist

@pytest.mark.world_size(2)
@pytest.mark.parametrize("number", range({tests}))
def test_all_reduce(world, number):
    x = torch.ones(8)
    dist.all_reduce(x)
    assert x[0] == 2
"""
PARTS = 5
PAUSE_S = 0.5
MIB = 1 << 20
Sample = tuple[float, int, int]
"""Unix time, private bytes of the command, those of the controller."""


def private(process: psutil.Process) -> int:
    """Bytes that are this process's own; 0 when it has ended."""
    try:
        memory = process.memory_info()
    except psutil.NoSuchProcess:
        return 0
    return int(memory.rss - memory.shared)


def run(folder: Path, tests: int) -> tuple[list[Sample], float]:
    """Have the tests run; the memory meanwhile, and when all was over (Unix time)."""
    (folder / "test_scale.py").write_text(TEST.format(tests=tests))
    command = psutil.Popen(
        [sys.executable, "-m", "disttest", "run", "test_scale.py", "--progress", "lines"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    samples: list[Sample] = []
    while command.poll() is None:
        controllers = [each for each in command.children() if "pytest" in " ".join(words_of(each))]
        samples.append((time.time(), private(command), sum(map(private, controllers[:1]))))
        time.sleep(PAUSE_S)
    if command.returncode:
        sys.exit(f"the run ended with exit code {command.returncode}")
    return samples, time.time()


def words_of(process: psutil.Process) -> Sequence[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return ()


def tell(folder: Path, samples: Sequence[Sample], ended_s: float) -> None:
    events = map(msgspec.json.decode, (folder / "results/events.jsonl").read_bytes().splitlines())
    results: list[dict[str, Any]] = [each["result"] for each in events if each["event"] == "test_finished"]
    starts = [result["started_at_s"] for result in results]
    last_s = starts[-1] + results[-1]["duration_s"]
    size = len(starts) // PARTS
    print(f"{'tests':>16}{'ms each':>9}{'median':>8}{'command MiB':>13}{'controller MiB':>16}")
    for part in range(PARTS):
        begin = part * size
        until_s = starts[begin + size] if part < PARTS - 1 else last_s
        durations = [result["duration_s"] for result in results[begin : begin + size]]
        of_part = [sample for sample in samples if starts[begin] <= sample[0] < until_s] or samples[-1:]
        print(
            f"{begin:>8} …{begin + size:>6}{1000 * (until_s - starts[begin]) / size:9.2f}"
            f"{1000 * statistics.median(durations):8.2f}"
            f"{max(sample[1] for sample in of_part) / MIB:13.0f}{max(sample[2] for sample in of_part) / MIB:16.0f}"
        )
    after = [sample for sample in samples if sample[0] >= last_s] or samples[-1:]
    print(
        f"{ended_s - last_s:.1f} s from the last test to the end of the command, all reports written; "
        f"command {max(sample[1] for sample in after) / MIB:.0f} MiB at most then"
    )


def seconds(folder: Path, words: Sequence[str]) -> float:
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-m", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tests", type=int, default=20_000)
    parser.add_argument("--listed", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="disttest-bench-") as name:
        folder = Path(name)
        tell(folder, *run(folder, given.tests))
        (folder / "test_scale.py").write_text(TEST.format(tests=given.listed))
        ours = seconds(folder, ["disttest", "list", "test_scale.py"])
        theirs = seconds(folder, ["pytest", "-p", "no:disttest", "--collect-only", "-qq", "test_scale.py"])
        print(f"{given.listed} tests listed in {ours:.1f} s; pytest collects them in {theirs:.1f} s")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
