"""How long somebody waits on the way from an empty folder to the first green test of their own.

    python bench/first_test.py [--rounds 3]

Types what the tutorial says: an environment, the install, a test, the run. A round before the others fills pip's cache.
Reading, and typing by hand, come on top. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from stopwatch import Stopwatch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from documents import blocks, commands, write_files  # what the tests of the docs type

PAGE, INSTALL, FIRST_TEST = "docs/tutorial.md", "Install", "A first test"
LIMIT_S = 1800.0
"""No single command takes longer, unless it hangs."""


def environment(cache: Path) -> dict[str, str]:
    """The environment of a shell, with a separate cache for pip."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    return kept | {"PIP_CACHE_DIR": str(cache)}


def types(text: str, folder: Path, cache: Path) -> tuple[float, float]:
    """Type it; it must be green. Wall and CPU time."""
    watch = Stopwatch()
    done = subprocess.run(
        ["bash", "-euc", text],
        cwd=folder,
        env=environment(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{text}ended with {done.returncode}:\n{done.stdout}")
    return watch.took()[:2]


def one_round(cache: Path) -> dict[str, tuple[float, float]]:
    """Step -> wall and CPU time, in a folder that is empty at first."""
    ((install, _),) = commands(blocks(PAGE, INSTALL))
    first = blocks(PAGE, FIRST_TEST)
    ((run, _),) = commands(first)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        enter = f". {folder}/.venv/bin/activate\n"
        took = {"environment": types(f"{sys.executable} -m venv .venv\n", folder, cache)}
        took["torch"] = types(f"{enter}pip install torch\n", folder, cache)
        took["install"] = types(enter + install, ROOT, cache)
        write_files(first, folder)
        took["run"] = types(enter + run, folder, cache)
    return took


def main() -> None:
    """Print the median of each step and of the whole."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often it is done with a warm cache")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        one_round(Path(cache))
        print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}", flush=True)
        rounds = [one_round(Path(cache)) for _ in range(asked.rounds)]
    steps = {step: [took[step] for took in rounds] for step in rounds[0]}
    steps["all"] = [tuple(map(sum, zip(*took.values(), strict=True))) for took in rounds]  # type: ignore[misc]
    for step, took in steps.items():
        wall_s, cpu_s = (statistics.median(times) for times in zip(*took, strict=True))
        print(f"{step}: {wall_s:.1f} s, {cpu_s:.1f} CPU s")


if __name__ == "__main__":
    main()
