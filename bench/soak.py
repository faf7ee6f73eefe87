"""The fault matrix mixed with thousands of good tests, for minutes: every verdict right, nothing grows, nothing left.

    python bench/soak.py [--seconds 600] [--good 2000]

Samples memory (anonymous pages, those shared with forks included) and descriptors of the command and of the
controller, prints them over time, and fails if they grow from the second quarter of the run to the last. (pytest
keeps the reports of failed tests until the end, so a few hundred KiB for each of them is no leak of ours.)
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "entrypoint"), str(HERE / "tests" / "support")]

from fault_matrix import all_cells

from disttest.host.descendants import children_of
from disttest.host.process import adopt_orphans
from disttest.model import Outcome
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, read_events

SAMPLE_S = 5.0
SLOTS = 8
MOST_ADDED_MIB = {"command": 8.0, "controller": 48.0}
"""Between the second and the last quarter."""
MOST_ADDED_DESCRIPTORS = 2


class Sample(NamedTuple):
    """What a process held at a moment."""

    after_s: float
    who: str
    memory_mib: float
    descriptors: int

    def __str__(self) -> str:
        return f"{self.after_s:6.0f} s  {self.who:<10}  {self.memory_mib:7.1f} MiB  {self.descriptors:4} descriptors"


def start(folder: Path, good: int, seconds: float) -> subprocess.Popen[bytes]:
    """The command over the full matrix; good tests fill the time."""
    cells = sum(1 for _ in all_cells())
    each = -(-good // cells)
    for name in ("matrix", "faults"):
        shutil.copy(HERE / "tests" / "fixtures" / "faulty_suites" / f"{name}.py", folder)
    environ = {
        "PYTHONPATH": os.pathsep.join([str(HERE / "entrypoint"), str(HERE / "tests" / "support")]),
        "FAULT_CELLS": "full",
        "MISDEED_FLOOD": str(1 << 30),
        "SOAK_GOOD": str(each),
        # Worlds of two side by side; the matrix itself takes a part of the time.
        "SOAK_GOOD_SECONDS": str(0.8 * seconds * (SLOTS // 2) / (each * cells)),
    }
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "disttest",
                "run",
                "matrix.py",
                "--slots",
                str(SLOTS),
            ],
            cwd=folder,
            env={**os.environ, "DISTTEST_LOG_LIMIT": "1m", **environ},
            stdout=output,
            stderr=output,
        )


def watch(process: subprocess.Popen[bytes]) -> Iterator[Sample]:
    """A sample of each process, every few seconds, until the command ends."""
    began_s = time.monotonic()
    command = psutil.Process(process.pid)
    while process.poll() is None:
        time.sleep(SAMPLE_S)
        after_s = time.monotonic() - began_s
        try:
            for who, each in (
                ("command", command),
                *(("controller", child) for child in command.children()[:1]),
            ):
                memory = each.memory_info()
                if memory.rss:  # it has not ended just now
                    yield Sample(after_s, who, (memory.rss - memory.shared) / (1 << 20), each.num_fds())
        except psutil.NoSuchProcess:
            continue


def growth(samples: list[Sample]) -> Iterator[str]:
    """What has grown, in words."""
    for who, allowed in MOST_ADDED_MIB.items():
        mine = [sample for sample in samples if sample.who == who]
        quarter = len(mine) // 4
        if not quarter:
            yield f"{who}: too few samples"
            continue
        early, late = mine[quarter : 2 * quarter], mine[-quarter:]
        memory = [statistics.median(sample.memory_mib for sample in part) for part in (early, late)]
        descriptors = [max(sample.descriptors for sample in part) for part in (early, late)]
        print(
            f"{who}: {memory[0]:.1f} MiB in the second quarter, {memory[1]:.1f} MiB in the last; "
            f"{descriptors[0]} and {descriptors[1]} descriptors"
        )
        if memory[1] > memory[0] + allowed:
            yield f"{who}: memory grew by {memory[1] - memory[0]:.1f} MiB"
        if descriptors[1] > descriptors[0] + MOST_ADDED_DESCRIPTORS:
            yield f"{who}: descriptors grew by {descriptors[1] - descriptors[0]}"


def wrong_verdicts(run: RunResult) -> Iterator[str]:
    """Each in words."""
    for cell in all_cells():
        found = [test.final for test in run.tests if cell.is_in(test.test.name)]
        fault = cell.check(found[0]) if len(found) == 1 else f"{cell}: {len(found)} results"
        if fault:
            yield fault
    for test in run.tests:
        if "good" in test.test.name and test.final.outcome is not Outcome.PASSED:
            yield f"{test.test.name}: {test.final.message}"


def main() -> int:
    """Run, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--good", type=int, default=2000)
    arguments = parser.parse_args()
    adopt_orphans()
    shm = Path("/dev/shm")
    before = {path.name for path in shm.iterdir()}
    samples = []
    with tempfile.TemporaryDirectory() as name:
        process = start(Path(name), arguments.good, arguments.seconds)
        for sample in watch(process):
            samples.append(sample)
            print(sample, flush=True)
        run = fold(read_events(Path(name) / "results" / FILE_NAME))
    wrong = [*wrong_verdicts(run), *growth(samples)]
    wrong += [f"left in shared memory: {left}" for left in {path.name for path in shm.iterdir()} - before]
    wrong += [f"left behind: process {pid}" for pid in children_of()]
    bad = sum(test.final.outcome.is_bad for test in run.tests)
    print(f"{len(run.tests)} tests, {bad} of them red as they should be; things that are wrong: {len(wrong)}")
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
