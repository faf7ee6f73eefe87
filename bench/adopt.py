"""What the suites of ``examples/adopt`` take by their own way and by ``disttest run``, side by side.

    python bench/adopt.py [--rounds 5] [STYLE…]

Only the tests that pass are run, each so many times. Wall time depends on what else the machine does, CPU time (of all
processes) hardly. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from stopwatch import Stopwatch, Took

ROOT = Path(__file__).resolve().parents[1]
SUITES = ROOT / "examples" / "adopt"
LIMIT_S = 1800.0
"""No single command of this script takes longer, unless it hangs."""
GOOD = "sum or adds or written"
ROUNDS = """
def pytest_generate_tests(metafunc):
    metafunc.fixturenames.append("_round")
    metafunc.parametrize("_round", range({rounds}))
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
STYLES = {"torchrun": ["--spmd", "2"], "spawn": [], "classes": [], "launcher": [], "pool": [], "script": []}
"""Folder -> what ``disttest run`` is told beside the settings of the folder."""


def run(command: list[str], folder: Path) -> Took:
    """Run it; it must be green."""
    watch = Stopwatch()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "entrypoint")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return watch.took()


def measure(style: str, rounds: int) -> str:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "suites"
        shutil.copytree(SUITES, folder)
        (folder / "conftest.py").write_text(ROUNDS.format(rounds=rounds))
        launcher = TORCHRUN if style == "torchrun" else []
        pytest = ["-m", "pytest", "-q", "-p", "no:disttest", style, "-k", GOOD]
        own = run([sys.executable, *launcher, *pytest], folder)
        ours = run([sys.executable, "-m", "disttest", "run", *STYLES[style], style, "-k", GOOD], folder)
    ratios = f"{own.wall_s / ours.wall_s:.1f} | {own.cpu_s / ours.cpu_s:.1f}"
    return (
        f"| {style} | {own.wall_s:.1f} s, {own.cpu_s:.1f} CPU s | "
        f"{ours.wall_s:.1f} s, {ours.cpu_s:.1f} CPU s | {ratios} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "styles", nargs="*", default=[*STYLES], metavar="STYLE", help="folders of examples/adopt"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each test is run")
    asked = parser.parse_args()
    print(f"{asked.rounds} rounds, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}", flush=True)
    print("| suite | its own way | disttest run | times quicker | times less CPU |")
    print("|---|---|---|---|---|", flush=True)
    for style in asked.styles:
        print(measure(style, asked.rounds), flush=True)


if __name__ == "__main__":
    main()
