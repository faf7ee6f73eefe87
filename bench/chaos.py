"""How long ``disttest chaos`` takes: 12 collectives on 4 ranks, 4 kinds of faults, 192 worlds; beside as many without faults.

    python bench/chaos.py [--kinds kill,stop] [--turns 1]

Prints wall and CPU seconds of each, and CPU seconds for a world; on a busy machine only the ratio of the last two says much.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from stopwatch import Stopwatch, Took

TEST = """
import pytest, torch, torch.distributed as dist

@pytest.mark.world_size(4)
def test_steps(world):
    for _ in range(12):
        dist.all_reduce(torch.ones(64))
"""
WORLDS = 12 * 4 * 4


def measure(folder: Path, *arguments: str) -> Took:
    """What a run of the command takes."""
    watch = Stopwatch()
    command = [sys.executable, "-m", "disttest", *arguments, "--progress", "lines"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return watch.took()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default="kill,stop,raise,delay")
    parser.add_argument("--turns", type=int, default=1)
    given = parser.parse_args()
    worlds = WORLDS * len(given.kinds.split(",")) // 4
    plain = ["--isolation", "fresh", "--repeat", str(worlds), "--slots", "24", "--sanitize", "off"]
    for _ in range(given.turns):
        with tempfile.TemporaryDirectory(prefix="disttest-bench-") as name:
            folder = Path(name)
            (folder / "test_steps.py").write_text(TEST)
            for title, arguments in (
                ("chaos", ["chaos", "test_steps.py", "--kinds", given.kinds]),
                ("unharmed", ["run", "test_steps.py", *plain]),
            ):
                wall_s, cpu_s, _ = measure(folder, *arguments)
                each = f"{1000 * cpu_s / worlds:.0f} ms for each"
                print(f"{title}: {worlds} worlds in {wall_s:.1f} s, {cpu_s:.1f} s of CPU, {each}")


if __name__ == "__main__":
    main()
