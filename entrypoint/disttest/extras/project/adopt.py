"""``disttest adopt``: looks at the text of a suite, and proposes how to run it. It imports and changes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from disttest.cli.purposes import Purpose, serves
from disttest.extras.project.init import PROJECT
from disttest.options.flags import ShowingCommand

_PASSED_OVER = frozenset({".git", ".tox", ".venv", "venv", "node_modules", "site-packages", "__pycache__"})
_LARGEST = 2 * 1024 * 1024
"""Bytes of a file that is read; larger ones are data."""


class Habit(NamedTuple):
    """A way in which suites start ranks."""

    pattern: re.Pattern[str]
    meaning: str
    settings: tuple[str, ...] = ()
    """Keys of ``[tool.disttest]``."""
    spmd: bool = False
    """Whether every test runs in every rank."""
    suffices: bool = False
    """Whether disttest runs such a suite without a setting, whatever else it does."""


_HABITS = (
    Habit(
        re.compile(r"\bmp\.spawn\(|\bstart_processes\(|\bmultiprocessing\b.*\b(?:Process|Pool)\b"),
        "starts processes: each file runs in a process of its own, and what it spawns has torch imported",
        ("isolate-files",),
    ),
    Habit(
        re.compile(r"[\"'](?:torchrun|accelerate|deepspeed)[\"']|torch\.distributed\.(?:run|launch)\b"),
        "runs a launcher as a command: each file runs in a process of its own",
        ("isolate-files",),
    ),
    Habit(
        re.compile(r"get_closest_marker\(\s*[\"']world_size[\"']"),
        "has a launcher that reads its own world_size mark: the mark stays that launcher's",
        ("isolate-files", "foreign-marks"),
    ),
    Habit(
        re.compile(r"environ(?:\.get)?[\[(]\s*[\"'](?:RANK|LOCAL_RANK|WORLD_SIZE)[\"']|[\"']env://[\"']"),
        "takes its rank from the environment, as under torchrun: every test runs in every rank",
        spmd=True,
    ),
    Habit(
        re.compile(r"PYTEST_XDIST_WORKER|def \w+\(.*\bworker_id\b"),
        "takes the workers of pytest-xdist for ranks: every test runs in every rank",
        spmd=True,
    ),
    Habit(
        re.compile(r"class \w+\(.*\bMultiProc\w*TestCase|class \w+\(.*\bDistributedTest\b|\bis_dist_test\b"),
        "has classes that start ranks: disttest forks and supervises them without a setting",
        suffices=True,
    ),
    Habit(
        re.compile(r"\bmark\.world_size\("),
        "marks tests with world_size: each runs in a world of that many ranks",
    ),
)


class Found(NamedTuple):
    """The first place of a habit, and how many there are."""

    habit: Habit
    place: str
    file: Path
    number: int


@serves(Purpose.SETUP)
@click.command(cls=ShowingCommand)
@click.argument("path", type=click.Path(path_type=Path, exists=True))
def adopt(path: Path) -> None:
    """Look at a suite that exists, without running it, and propose the settings and the command to run it with."""
    found = find_habits(path)
    for each in found:
        more = f" and {each.number - 1} more" if each.number > 1 else ""
        click.echo(f"{each.place}{more}: {each.habit.meaning}")
    if not found:
        click.echo(f"{path}: no sign of ranks: pytest's ordinary tests run as they are")
    click.echo()
    for line in propose(path, found):
        click.echo(line)


def find_habits(path: Path) -> list[Found]:
    """Find the habits in the Python files at or below a path."""
    places: dict[Habit, list[tuple[Path, int]]] = {}
    for file in _sources(path):
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            for habit in _HABITS:
                if habit.pattern.search(line):
                    places.setdefault(habit, []).append((file, number))
    return [
        Found(habit, f"{places[habit][0][0]}:{places[habit][0][1]}", places[habit][0][0], len(places[habit]))
        for habit in _HABITS
        if habit in places
    ]


def propose(path: Path, found: Sequence[Found]) -> Iterator[str]:
    """Return the settings and the command, line by line."""
    needs_none = any(each.habit.suffices for each in found)
    settings = {} if needs_none else {key: each for each in found for key in each.habit.settings}
    yield f"[tool.disttest]  # in {PROJECT}"
    if "isolate-files" in settings:
        yield "isolate-files = true"
    if "foreign-marks" in settings:
        folder = settings["foreign-marks"].file.parent
        yield f'foreign-marks = ["{os.path.relpath(folder)}"]  # seen from pytest\'s root directory'
    yield "timeout = 120"
    yield ""
    # A suite that starts its ranks in some tests is not run in ranks as a whole.
    spmd = "--spmd 2 " if any(each.habit.spmd for each in found) and not (settings or needs_none) else ""
    yield f"disttest run {spmd}{path}"


def _sources(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for folder, names, files in os.walk(path):
        names[:] = sorted(set(names) - _PASSED_OVER)
        for name in sorted(files):
            file = Path(folder, name)
            if name.endswith(".py") and file.is_file() and file.stat().st_size <= _LARGEST:
                yield file
