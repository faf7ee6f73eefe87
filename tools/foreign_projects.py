"""Runs distributed tests of projects on the package index by their own way and by ours. For people, not CI.

    python tools/foreign_projects.py [NAME…] [--cache FOLDER] [--limit SECONDS] [--write]

``foreign_projects.toml`` beside this file says which projects and which part of their tests. They are downloaded into FOLDER,
never into the repository, and what has run there is not run again. A test has the worst of the verdicts that its ranks gave it.
``--write`` puts the table into ``docs/adopt.md``.

Exits with 1 when a verdict differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from foreign import ROOT, measure
from generated_page import write_section

from disttest.host.process import adopt_orphans

PROJECTS = Path(__file__).with_suffix(".toml")
PAGE = ROOT / "docs" / "adopt.md"
BEGIN, END = "<!-- begin: tools/foreign_projects.py --write -->", "<!-- end -->"
BROKEN = "not imported"
_GRAVITY = ("passed", "xfailed", "skipped", "failed")
_WORLD = re.compile(r"\[\d+xgloo\]$|(?<=\[)\d+xgloo-")
"""What launcher mode adds to the name of a test."""


class Project(NamedTuple):
    """What is installed, and where its tests lie then."""

    name: str
    version: str
    tests: str
    needs: Sequence[str]
    suite: Sequence[Mapping[str, Any]]


class Suite(NamedTuple):
    """A part of a project's tests, and the two ways to run it."""

    style: str
    paths: Sequence[str]
    ours: Sequence[str]
    own: Sequence[str] = ()
    both: Sequence[str] = ()
    launch: Sequence[str] = ()
    own_environ: Mapping[str, str] = {}
    environ: Mapping[str, str] = {}
    changed: str = "nothing"
    add: Mapping[str, str] = {}


class WayRun(NamedTuple):
    """A suite that was run in one way."""

    verdicts: Mapping[str, str]
    seconds: float
    cpu_seconds: float


class ProjectFolders(NamedTuple):
    """Where a project lies."""

    site: Path
    tests: Path


def install(project: Project, cache: Path) -> ProjectFolders:
    """Download a project, its tests and what it needs, once."""
    folder = cache / f"{project.name}-{project.version}"
    place = ProjectFolders(
        folder / "site", folder / "source" if project.tests == "sdist" else folder / "site"
    )
    if not (folder / "complete").exists():
        pinned = f"{project.name}=={project.version}"
        if project.tests == "sdist":
            _pip("download", "--no-deps", "--no-binary", project.name, "--dest", str(folder), pinned)
            # tar keeps members inside of the folder; tarfile does so only from Python 3.11.4 on.
            (folder / "unpacked").mkdir(exist_ok=True)
            archive, unpacked = next(folder.glob("*.tar.gz")), folder / "unpacked"
            subprocess.run(["tar", "--extract", "--file", archive, "--directory", unpacked], check=True)
            next((folder / "unpacked").iterdir()).rename(place.tests)
        _pip("install", "--no-deps", "--target", str(place.site), pinned, *project.needs)
        (folder / "complete").touch()
    return place


def run_both(suite: Suite, place: ProjectFolders, folder: Path, limit_s: float) -> tuple[WayRun, WayRun]:
    """Run a suite in both ways.

    Raises:
        SystemExit: it has no tests that run here by its own way, so nothing can be compared.
    """
    own = run_way(suite, "own", place, folder / "own", limit_s)
    if not own.verdicts or BROKEN in own.verdicts.values():
        sys.exit(f"{suite.paths}: nothing to compare, since they do not import: {folder}/own/output.txt")
    return own, run_way(suite, "ours", place, folder / "ours", limit_s)


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", *arguments], check=True)


def run_way(suite: Suite, way: str, place: ProjectFolders, folder: Path, limit_s: float) -> WayRun:
    """Run a suite by ``own`` or ``ours``, or read what an earlier call has kept of it."""
    done, record = folder / "done.json", folder / "record.jsonl"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        record.write_text("")
        for name, text in suite.add.items():
            (place.tests / name).write_text(text)
        command = _command(suite, way, folder)
        environ = _environment(suite, way, place, record)
        done.write_text(json.dumps(measure(command, place.tests, environ, folder / "output.txt", limit_s)))
    measured = json.loads(done.read_text())
    return WayRun(verdicts_of(record.read_text().splitlines()), measured["seconds"], measured["cpu_seconds"])


def _command(suite: Suite, way: str, folder: Path) -> list[str]:
    recorder = ["-p", "recorder_plugin", "-p", "no:cacheprovider"]
    if way == "own":
        pytest = ["-m", "pytest", "-q", "-p", "no:disttest", *recorder, *suite.own, *suite.both]
        return [sys.executable, *suite.launch, *pytest, *suite.paths]
    ours = [*suite.ours, "--results", str(folder / "results"), *suite.both]
    return [sys.executable, "-m", "disttest", "run", *ours, *suite.paths, "--", *recorder]


def _environment(suite: Suite, way: str, place: ProjectFolders, record: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DISTTEST_", "FOREIGN_", "PYTEST_"))}
    paths = [place.tests, place.site, ROOT / "tools"]
    ours = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "FOREIGN_RECORD": str(record)}
    ours["PYTHONHASHSEED"] = "0"  # names of tests that were made from sets
    return {**kept, **suite.environ, **(suite.own_environ if way == "own" else {}), **ours}


def verdicts_of(lines: Iterable[str]) -> dict[str, str]:
    """Test -> the worst verdict of its ranks; a file that cannot be imported is told as a test."""
    verdicts: dict[str, str] = {}
    for line in map(json.loads, lines):
        if "broken" in line:
            verdicts[line["broken"]] = BROKEN
        elif "test" in line:
            name = _WORLD.sub("", f"{line['file']}::{line['test']}")
            verdicts[name] = max(verdicts.get(name, "passed"), line["outcome"], key=_GRAVITY.index)
    return verdicts


def differences(own: WayRun, ours: WayRun) -> list[str]:
    """Tests that the two ways do not judge alike."""
    names = sorted(own.verdicts.keys() | ours.verdicts.keys())
    pairs = ((name, own.verdicts.get(name, "missing"), ours.verdicts.get(name, "missing")) for name in names)
    return [f"{name}: {theirs} by its own way, {our} by ours" for name, theirs, our in pairs if theirs != our]


def row(project: Project, suite: Suite, own: WayRun, ours: WayRun) -> str:
    """A line of the table."""
    counts = Counter(own.verdicts.values())
    told = ", ".join(f"{counts[word]} {word}" for word in _GRAVITY if counts[word])
    differing = len(differences(own, ours))
    cells = (
        f"{project.name} {project.version}",
        suite.style,
        suite.changed,
        " ".join(suite.ours),
        f"{told}; {f'{differing} differ' if differing else 'the same'}",
        f"{own.seconds:.0f} s, {own.cpu_seconds:.0f} CPU s",
        f"{ours.seconds:.0f} s, {ours.cpu_seconds:.0f} CPU s",
        f"{own.seconds / ours.seconds:.1f}, {own.cpu_seconds / ours.cpu_seconds:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def table(rows: Sequence[str]) -> Iterator[str]:
    """The table, with what it was made on."""
    import pytest
    import torch

    yield (
        f"{datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}, pytest {pytest.__version__}, Python {sys.version.split()[0]}, "
        f"{os.cpu_count()} processors that other work shared (load {os.getloadavg()[0]:.0f}):"
    )
    yield ""
    yield "| project | its tests | changed | `disttest run` | verdicts | its own way | ours | times as fast, times less CPU |"
    yield "|---|---|---|---|---|---|---|---|"
    yield from rows


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these projects")
    parser.add_argument("--cache", type=Path, default=Path("/tmp/foreign-projects"), help="where they lie")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds for a suite in one way")
    parser.add_argument("--write", action="store_true", help="put the table into docs/adopt.md")
    asked = parser.parse_args()
    adopt_orphans()
    rows, differing = [], []
    for project in (Project(**entry) for entry in tomllib.loads(PROJECTS.read_text())["project"]):
        if asked.names and project.name not in asked.names:
            continue
        place = install(project, asked.cache.resolve())
        for number, suite in enumerate(Suite(**entry) for entry in project.suite):
            folder = place.site.parent / f"suite-{number}"
            own, ours = run_both(suite, place, folder, asked.limit)
            rows.append(row(project, suite, own, ours))
            differing += differences(own, ours)
            print("\n".join([rows[-1], *differences(own, ours)]), flush=True)
    lines = list(table(rows))
    print("\n".join(lines))
    if asked.write:
        write_section(PAGE, BEGIN, END, lines)
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
