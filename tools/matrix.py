"""Runs what depends on torch and pytest with other versions of them: ``make matrix``, and ``make matrix ROWS=oldest``.

Each row is a virtual environment of the user's cache with these versions from the package registry (2.5 to 5 GB, once),
in which this checkout is installed as a user would, and a part of our tests runs. ``docs/versions.md`` has what came of
it; ``--write`` puts it there.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from generated_page import write_section

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "disttest" / "matrix"
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- begin: make matrix -->", "<!-- end: make matrix -->"


class Row(NamedTuple):
    """Versions that go together."""

    name: str
    torch: str
    pytest: str


ROWS = (
    Row("oldest", "2.9.1", "8.3.5"),
    Row("newest", "2.15.0", "9.2.0"),
)


class Check(NamedTuple):
    """A part of our tests."""

    name: str
    shows: str
    tests: tuple[str, ...]


CHECKS = (
    Check("unit", "planning, results, reports", ("tests/unit",)),
    Check(
        "worlds",
        "fresh and warm worlds, marks, verdicts, what pytest's users do",
        tuple(
            f"tests/integration/test_{name}.py"
            for name in ("warm_worlds", "marks", "verdicts", "mixed_outcomes", "pytest_habits", "retries")
        ),
    ),
    Check("state", "what is put back between tests", ("tests/integration/test_states.py",)),
    Check(
        "torch's classes", "MultiProcessTestCase and its kind", ("tests/integration/test_torch_classes.py",)
    ),
    Check("observe", "every way to call a collective is seen", ("tests/integration/test_observe.py",)),
)


def environment(row: Row) -> Path:
    """The interpreter of a row; made when it is missing."""
    folder = CACHE / f"torch{row.torch}-pytest{row.pytest}"
    python, whole = folder / "bin" / "python", folder / ".whole"
    uv = [sys.executable, "-m", "uv"]
    if not whole.exists():
        subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
    wanted = [
        f"torch=={row.torch}",
        f"pytest=={row.pytest}",
        "setuptools",
        "--editable",
        f"{ROOT}[torch,dev]",
    ]
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, *wanted], check=True)
    whole.touch()
    return python


def run(python: Path, check: Check) -> tuple[bool, str]:
    """Run a part of the tests; whether it is green, and pytest's last line."""
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DISTTEST_"))
    }
    ended = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", *check.tests],
        cwd=ROOT,
        env=environ | {"PATH": f"{python.parent}:{environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    print(ended.stdout if ended.returncode else ended.stdout[-200:], flush=True)
    last = next(
        (
            line
            for line in reversed(ended.stdout.splitlines())
            if re.search(r"\d+ (passed|failed|error)", line)
        ),
        "",
    )
    return ended.returncode == 0, re.sub(r" in .*", "", last).strip("= ") or f"exit code {ended.returncode}"


def main() -> int:
    """Run the rows that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "rows", nargs="*", default=[row.name for row in ROWS], help="names of rows; default: all"
    )
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    lines = ["| torch | pytest | " + " | ".join(check.name for check in CHECKS) + " |"]
    lines.append("|---" * (len(CHECKS) + 2) + "|")
    green = True
    for row in (row for row in ROWS if row.name in options.rows):
        python = environment(row)
        told = []
        for check in CHECKS:
            print(f"== torch {row.torch}, pytest {row.pytest}: {check.name} ({check.shows})", flush=True)
            good, words = run(python, check)
            green = green and good
            told.append(words)
        lines.append(f"| {row.torch} | {row.pytest} | {' | '.join(told)} |")
    print("\n".join(lines), end="\n\n")
    if options.write:
        write_section(PAGE, BEGIN, END, lines)
    return 0 if green else 1


if __name__ == "__main__":
    sys.exit(main())
