"""Where the CPU time of a world goes: milliseconds and page faults for each step, by marks in the code.

    python bench/steps.py [--size 2] [--worlds 40] [--isolation fresh|warm]

The steps are those that ranks, worlds and the controller mark (``disttest/host/cpu_marks.py``); the journal has them, because
the bench sets ``DISTTEST_CPU_STEPS=true``. The last line is the rest of the whole (the command, the ends of the world
processes). Start-up is not in it, because the bench subtracts a run of one test. With ``--isolation warm`` the figures are the
cost of one more test.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from stopwatch import Stopwatch

TEST = """
import pytest, torch, torch.distributed as dist

@pytest.mark.world_size({size})
@pytest.mark.parametrize("number", range({tests}))
def test_steps(world, number):
    for _ in range(12):
        dist.all_reduce(torch.ones(64))
"""


def run(folder: Path, tests: int, words: Sequence[str], size: int) -> tuple[float, int, list[dict[str, Any]]]:
    """CPU seconds and page faults of a run, and the steps that its journal tells."""
    folder.mkdir()
    (folder / "test_steps.py").write_text(TEST.format(size=size, tests=tests))
    command = [sys.executable, "-m", "disttest", *words, "--progress", "lines", "--results", "results"]
    watch = Stopwatch()
    environ = {**os.environ, "DISTTEST_CPU_STEPS": "true"}
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, env=environ)
    took = watch.took()
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    events = map(msgspec.json.decode, (folder / "results/events.jsonl").read_bytes().splitlines())
    steps = [step for event in events for step in event.get("cpu_steps", ())]
    return took.cpu_s, took.page_faults, steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=2, help="ranks of a world")
    parser.add_argument("--worlds", type=int, default=40, help="how many; with warm ones, tests")
    parser.add_argument("--isolation", choices=("fresh", "warm"), default="fresh")
    given = parser.parse_args()
    words = ["run", "test_steps.py", "--isolation", given.isolation, "--sanitize", "off"]
    unit = "world" if given.isolation == "fresh" else "test"
    with tempfile.TemporaryDirectory(prefix="disttest-bench-") as name:
        one_s, one_faults, few = run(Path(name) / "one", 1, words, given.size)
        many_s, many_faults, steps = run(Path(name) / "many", 1 + given.worlds, words, given.size)
    spent: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for sign, each in ((1, steps), (-1, few)):
        for step in each:
            sums = spent[step["role"], step["step"]]
            sums[0] += sign * step["cpu_s"]
            sums[1] += sign * step.get("faults", 0)
    whole = (many_s - one_s, float(many_faults - one_faults))
    told = [sum(each[i] for each in spent.values()) for i in (0, 1)]
    spent["all else", ""] = [whole[0] - told[0], whole[1] - told[1]]
    ranks = f"{given.size} ranks (all together), 12 all_reduce"
    print(f"for each of {given.worlds} {unit}s, {given.isolation}: {ranks}")
    print(f"{'':32}{'CPU ms':>8}{'faults':>8}")
    for (role, step), (cpu_s, faults) in spent.items():
        print(f"{role:12}{step:20}{1000 * cpu_s / given.worlds:8.1f}{faults / given.worlds:8.0f}")
    print(f"{'':12}{'whole':20}{1000 * whole[0] / given.worlds:8.1f}{whole[1] / given.worlds:8.0f}")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
