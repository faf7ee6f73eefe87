"""From a saved file to its verdict: what a developer waits for after each edit of a 2-rank test.

    python bench/resident.py [--rounds 20]

Each round saves the file anew, with another number in it, and runs it in turn with ``disttest run --resident``, ``disttest
run``, ``pytest`` and ``torchrun -m pytest``; what is measured ends with the command. Prints median, 95th percentile and ratios
in one table, and the machine's load; a line for each round goes to standard error. The first run of each is left out: it starts
the resident parent, and writes byte code for the others. The aim of ``--resident`` is 0.5 s in the median and 1 s at the 95th
percentile. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT_S = 300.0
"""No single command of this script takes longer, unless it hangs."""
WORLD = """
import pytest, torch
import torch.distributed as dist

@pytest.mark.world_size(2)
def test_all_reduce(world):
    x = torch.full((8,), {number}.0)
    dist.all_reduce(x)
    assert x[0] == 2 * {number}
"""
LAUNCHED = """
import torch
import torch.distributed as dist

def test_all_reduce():
    dist.init_process_group("gloo")
    x = torch.full((8,), {number}.0)
    dist.all_reduce(x)
    assert x[0] == 2 * {number}
    dist.destroy_process_group()
"""
PYTHON = (sys.executable, "-m")
COMMANDS = {
    "disttest run --resident": (WORLD, (*PYTHON, "disttest", "run", "--resident", "test_it.py")),
    "disttest run": (WORLD, (*PYTHON, "disttest", "run", "test_it.py")),
    "pytest, with the plugin": (WORLD, (*PYTHON, "pytest", "-q", "test_it.py")),
    "torchrun -m pytest": (
        LAUNCHED,
        (
            *PYTHON,
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            "-m",
            "pytest",
            "-q",
            "test_it.py",
        ),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="two at least")
    rounds = max(2, parser.parse_args().rounds)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as runtime:
        environ = {**os.environ, "XDG_RUNTIME_DIR": runtime}
        try:
            waits = measure(Path(folder), environ, rounds)
        finally:
            subprocess.run(
                [*PYTHON, "disttest", "resident", "stop"], env=environ, check=False, capture_output=True
            )
    show(waits)


def measure(folder: Path, environ: Mapping[str, str], rounds: int) -> dict[str, list[float]]:
    """Seconds of each command, in turn, so that all of them meet the same machine."""
    waits: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(rounds + 1):
        for name, (source, command) in COMMANDS.items():
            waits[name].append(wait(folder, source.format(number=number + 1), command, environ))
        told = ", ".join(f"{seconds[-1]:.1f}" for seconds in waits.values())
        print(f"round {number} of {rounds}: {told} s", file=sys.stderr, flush=True)
    return {name: seconds[1:] for name, seconds in waits.items()}


def wait(folder: Path, source: str, command: Sequence[str], environ: Mapping[str, str]) -> float:
    began_s = time.perf_counter()
    (folder / "test_it.py").write_text(source)
    ended = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return time.perf_counter() - began_s


def show(waits: Mapping[str, Sequence[float]]) -> None:
    best = statistics.median(next(iter(waits.values())))
    print("| from save to verdict | median | 95th percentile | times as long |")
    print("|---|---|---|---|")
    for name, seconds in waits.items():
        median, slow = statistics.median(seconds), statistics.quantiles(seconds, n=20, method="inclusive")[-1]
        print(f"| {name} | {median:.2f} s | {slow:.2f} s | {median / best:.1f} |")
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"\n{len(next(iter(waits.values())))} rounds, {os.cpu_count()} processors, load {load}")


if __name__ == "__main__":
    main()
