"""Planted flaky tests: for how many does ``disttest flaky`` name the right cause?

    python bench/flaky.py                        all 40
    python bench/flaky.py seed machine           those of two causes
    python bench/flaky.py --budget 300           seconds for each test
    python bench/flaky.py --each 1               one test of each cause

Prints a line for each test, and the number of right answers. No deterministic failure may be called flaky. Measured in one run of
50 minutes, on two processors next to other work (load 3 to 7): 36 of 40. The others were "unknown" (3) and "never failed" (1).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "tests" / "planted_flaky"
CAUSES = {
    "deterministic": "deterministic",
    "order_broken": "order of tests",
    "order_needed": "order of tests",
    "seed": "seed",
    "late_rank": "timing",
    "slow_processor": "timing",
    "resources": "resources",
    "machine": "machine",
}
"""Name of a file, mapped to the cause of its tests. Tests named ``test_that_…`` only help."""


def planted(name: str) -> list[str]:
    """Return the tests of a file."""
    return [
        found
        for found in re.findall(r"^def (test_\w+)", (FOLDER / f"{name}.py").read_text(), re.MULTILINE)
        if not found.startswith("test_that_")
    ]


def cause_of(name: str, test: str, budget_s: float) -> str:
    """Measure a test, and return its cause."""
    with tempfile.TemporaryDirectory(prefix="disttest-bench-") as folder:
        argv = [sys.executable, "-m", "disttest", "flaky", f"{FOLDER / f'{name}.py'}::{test}"]
        argv += ["--budget", f"{budget_s:g}", "--results", f"{folder}/results", "--json", f"{folder}/found"]
        ended = subprocess.run(
            argv,
            cwd=FOLDER,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            (found,) = json.loads(Path(folder, "found").read_text())["tests"]
        except FileNotFoundError:
            return ended.stdout + ended.stderr
        return str(found["cause"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*CAUSES])
    parser.add_argument("--budget", type=float, default=120)
    parser.add_argument("--each", type=int, default=5)
    given = parser.parse_args()
    right = total = 0
    for name in given.names:
        for test in planted(name)[: given.each]:
            cause = cause_of(name, test, given.budget)
            total += 1
            right += cause == CAUSES[name]
            print(f"{'right' if cause == CAUSES[name] else 'WRONG'}  {name:15} {test:30} {cause}", flush=True)
    print(f"{right} of {total} right")


if __name__ == "__main__":
    main()
