"""Runs what depends on Python, torch and pytest with other versions of them: ``make matrix``, ``make matrix ROWS=oldest``.

Each row is a virtual environment of the user's cache with these versions from the package registry (5 to 7 GB, once),
in which this checkout is installed as a user would, and a part of our tests runs. Torch is the build that pip takes by
default, which is CUDA's. ``docs/versions.md`` has what came of it; ``--write`` puts it there.
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
    python: str
    torch: str
    pytest: str
    lowest: bool = False
    """All else that the project asks for is as old as it may be, too."""

    @property
    def words(self) -> str:
        """Its versions, for people."""
        others = ", all else as old as it may be" if self.lowest else ""
        return f"Python {self.python}, torch {self.torch}, pytest {self.pytest}{others}"


ROWS = (
    Row("oldest", "3.11", "2.9.0", "8.4.0", lowest=True),
    Row("middle", "3.12", "2.11.0", "9.0.0"),
    Row("newest", "3.13", "2.15.0", "9.2.0"),
)


class Check(NamedTuple):
    """A part of our tests."""

    name: str
    shows: str
    tests: tuple[str, ...]


def integration(*names: str) -> tuple[str, ...]:
    """Modules of tests with real ranks."""
    return tuple(f"tests/integration/test_{name}.py" for name in names)


CHECKS = (
    Check(
        "unit",
        "planning, results, reports, private names",
        ("tests/unit", "tests/contract/test_private_names.py"),
    ),
    Check(
        "worlds",
        "fresh and warm worlds, marks, verdicts, what pytest's users do",
        integration("warm_worlds", "marks", "verdicts", "mixed_outcomes", "pytest_habits", "retries"),
    ),
    Check("state", "what is put back between tests", integration("states", "reused_ranks")),
    Check(
        "classes",
        "torch's own test classes and ours",
        integration("torch_classes", "own_classes", "launching_classes", "started_processes"),
    ),
    Check("observe", "every way to call a collective is seen", integration("observe")),
    Check(
        "tools",
        "deadlocks, sanitizers, replay, chaos",
        integration("deadlock", "sanitize_order", "replay", "chaos"),
    ),
    Check("changed", "which functions a test uses, by the recorder of each Python", integration("changed")),
)


def environment(row: Row) -> Path:
    """The interpreter of a row; made when it is missing."""
    folder = CACHE / f"python{row.python}-torch{row.torch}-pytest{row.pytest}"
    python, whole = folder / "bin" / "python", folder / ".whole"
    if not whole.exists():
        _uv("venv", "--quiet", "--clear", "--seed", "--python", row.python, folder)
    install = ("pip", "install", "--quiet", "--python", python)
    wanted = (f"torch=={row.torch}", f"pytest=={row.pytest}", "--editable", f"{ROOT}[torch,native]")
    _uv(*install, *(("--resolution", "lowest-direct") if row.lowest else ()), *wanted)
    # What the tests themselves need must not renew the others.
    frozen = folder / "frozen.txt"
    frozen.write_text(_uv("pip", "freeze", "--quiet", "--exclude-editable", "--python", python))
    _uv(*install, "--constraint", frozen, "setuptools", "--editable", f"{ROOT}[dev]")
    whole.touch()
    return python


def _uv(*arguments: str | Path) -> str:
    """What it says; its errors go to the terminal, and end this run."""
    argv = [sys.executable, "-m", "uv", *arguments]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


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
    return ended.returncode == 0, re.sub(r" in .*|, \d+ warnings?", "", last).strip(
        "= "
    ) or f"exit code {ended.returncode}"


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
    lines = ["| versions | " + " | ".join(check.name for check in CHECKS) + " |"]
    lines.append("|---" * (len(CHECKS) + 1) + "|")
    green = True
    for row in (row for row in ROWS if row.name in options.rows):
        python = environment(row)
        told = []
        for check in CHECKS:
            print(f"== {row.words}: {check.name} ({check.shows})", flush=True)
            good, words = run(python, check)
            green = green and good
            told.append(words)
        lines.append(f"| {row.words} | {' | '.join(told)} |")
    print("\n".join(lines), end="\n\n")
    if options.write:
        write_section(PAGE, BEGIN, END, lines)
    return 0 if green else 1


if __name__ == "__main__":
    sys.exit(main())
