"""Runs foreign unittest files under torch's own harness and under ours, and compares test by test. For people, not CI.

    python tools/foreign.py PATH… [--out FOLDER] [--limit SECONDS] [-k EXPRESSION] [--seed N] [--spawn]

Each file runs alone, under plain pytest without the plugin, then with it, its tests in one shuffled order. Torch's
ranks come from a fork server that has imported the file (``tests/compat/fork_server.py``; ``--spawn``: each is a new
interpreter, as torch has it). Both have the same limit for a file; what was not reached by then is not compared, and
files that do not import are left out and counted. FOLDER keeps outputs and verdicts: a second call with the same one
goes on where the first has stopped. ``BACKEND``, ``WORLD_SIZE`` and the like are taken from the environment.

Exits with 1 when a verdict differs for which ``tests/compat/foreign.toml`` has no reason.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from disttest.host.descendants import kill_descendants
from disttest.host.process import adopt_orphans
from disttest.runtime.supervisor.run_supervisor import plugin_arguments

HARNESSES = ("torch", "disttest")
REASONS = ROOT / "tests" / "compat" / "foreign.toml"
_NOT_REACHED = "not reached"


class Options(NamedTuple):
    """What was asked."""

    out: Path
    limit_s: float
    select: str
    seed: int
    spawn: bool


class Verdict(NamedTuple):
    """A test under one harness."""

    outcome: str
    seconds: float = 0.0
    message: str = ""


class FileRun(NamedTuple):
    """A file under one harness."""

    verdicts: dict[str, Verdict]
    collected: list[str]
    broken: str
    """Why it could not be imported; empty if it could."""
    seconds: float
    cpu_seconds: float

    def of(self, test: str) -> Verdict:
        """The verdict of a test."""
        return self.verdicts.get(test, Verdict(_NOT_REACHED if test in self.collected else "missing"))


class Row(NamedTuple):
    """A test under both."""

    file: str
    test: str
    theirs: Verdict
    ours: Verdict
    reason: str
    """Why the verdicts differ, where that is known."""

    @property
    def compared(self) -> bool:
        """Whether both came to an end."""
        return _NOT_REACHED not in (self.theirs.outcome, self.ours.outcome)

    @property
    def same(self) -> bool:
        """Whether they agree."""
        return self.theirs.outcome == self.ours.outcome


class Reason(NamedTuple):
    """Why verdicts of a kind differ: what our message says, and the two outcomes."""

    theirs: str
    ours: str
    message: str
    """A regular expression, searched for in ``file::test: torch's message | our message``."""
    why: str


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Test files below the paths, by unittest's and pytest's names."""
    found: set[Path] = set()
    for path in paths:
        found |= {path} if path.is_file() else {*path.rglob("test_*.py"), *path.rglob("*_test.py")}
    return sorted(path.resolve() for path in found)


def run_file(path: Path, harness: str, options: Options) -> FileRun:
    """Run a file under a harness, or read what an earlier call has kept of it."""
    folder = options.out / f"{_slug(path)}-{harness}"
    done, record = folder / "done.json", folder / "record.jsonl"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        record.write_text("")
        done.write_text(json.dumps(_measure(path, harness, options, folder)))
    return _read(record, json.loads(done.read_text()))


def _measure(path: Path, harness: str, options: Options, folder: Path) -> dict[str, float]:
    command, environ = _command(path, harness, options, folder), _environment(path, options, folder)
    return measure(command, path.parent, environ, folder / "output.txt", options.limit_s)


def measure(
    command: Sequence[str], cwd: Path, environ: Mapping[str, str], output: Path, limit_s: float
) -> dict[str, float]:
    """Run a command to its end or its limit; what it leaves is ended. The caller has adopted orphans.

    Returns:
        ``seconds``, ``cpu_seconds`` of all its processes, and ``code`` of its exit.
    """
    before, began_s = _cpu_of_children(), time.monotonic()
    with output.open("w") as file:
        process = subprocess.Popen(
            command, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    seconds = time.monotonic() - began_s
    kill_descendants()  # of what has ended, adopted by this process; reaped, so that their CPU time counts
    return {"seconds": seconds, "cpu_seconds": _cpu_of_children() - before, "code": process.returncode}


def _command(path: Path, harness: str, options: Options, folder: Path) -> list[str]:
    common = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={path.parent}"]
    common += ["-p", "no:cacheprovider", "-p", "recorder_plugin"]
    selected = ["-k", options.select] if options.select else []
    if harness == "torch":
        server = [] if options.spawn else ["-p", "tests.compat.fork_server"]
        return [*common, "-p", "no:disttest", *server, *selected, str(path)]
    ours = (*plugin_arguments(), "--disttest-host", f"--disttest-results={folder / 'results'}")
    return [*common, *ours, *selected, str(path)]


def _environment(path: Path, options: Options, folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DISTTEST_", "PYTEST_"))}
    paths = [str(path.parent), str(ROOT / "tools"), str(ROOT), *filter(None, [kept.get("PYTHONPATH", "")])]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "FOREIGN_RECORD": str(folder / "record.jsonl"),
        "FOREIGN_SEED": str(options.seed),
    }


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read(record: Path, measured: dict[str, float]) -> FileRun:
    lines: list[dict[str, Any]] = [json.loads(line) for line in record.read_text().splitlines()]
    return FileRun(
        verdicts={
            line["test"]: Verdict(line["outcome"], line["seconds"], line["message"])
            for line in lines
            if "test" in line
        },
        collected=[name for line in lines for name in line.get("collected", ())],
        broken=next((line["message"] or "?" for line in lines if "broken" in line), ""),
        seconds=measured["seconds"],
        cpu_seconds=measured["cpu_seconds"],
    )


def _slug(path: Path) -> str:
    return re.sub(r"\W+", "-", str(path.with_suffix(""))).strip("-")


def load_reasons() -> list[Reason]:
    """The kinds of differences that are known."""
    return [Reason(**entry) for entry in tomllib.loads(REASONS.read_text()).get("reason", [])]


def compare(file: str, theirs: FileRun, ours: FileRun, reasons: Sequence[Reason]) -> list[Row]:
    """Every test of a file that either has collected."""
    rows = []
    for test in sorted({*theirs.collected, *ours.collected}):
        their, our = theirs.of(test), ours.of(test)
        words = f"{file}::{test}: {their.message} | {our.message}"
        known = (
            reason.why
            for reason in reasons
            if (reason.theirs, reason.ours) == (their.outcome, our.outcome)
            and re.search(reason.message, words)
        )
        rows.append(Row(file, test, their, our, next(known, "") if their.outcome != our.outcome else ""))
    return rows


def table(rows: Sequence[Row]) -> Iterator[str]:
    """One line for each test; the words of both where they differ."""
    for row in rows:
        word = "same" if row.same else "differ" if row.compared else "----"
        both = f"{row.theirs.outcome:>11} {row.theirs.seconds:7.2f} s {row.ours.outcome:>11} {row.ours.seconds:7.2f} s"
        yield f"{word:6} {both}  {row.file}::{row.test}"
        if not row.same and row.compared:
            yield f"         torch: {row.theirs.message[:300]!r}"
            yield f"         ours:  {row.ours.message[:300]!r}"
            yield f"         why:   {row.reason or 'UNEXPLAINED'}"


def totals(
    runs: Sequence[tuple[FileRun, FileRun]], rows: Sequence[Row], left_out: Counter[str]
) -> Iterator[str]:
    """The figures of the whole."""
    compared = [row for row in rows if row.compared]
    both_ran = [row for row in compared if {row.theirs.outcome, row.ours.outcome} != {"skipped"}]
    differing = [row for row in compared if not row.same]
    yield f"files: {len(runs)} compared, {left_out.total()} left out"
    yield from (f"  {count} × {why}" for why, count in left_out.most_common())
    yield (
        f"tests: {len(rows)} collected, {len(compared)} compared ({len(both_ran)} of them not merely skipped by both): "
        f"{len(compared) - len(differing)} same, {len(differing)} differ, "
        f"{sum(not row.reason for row in differing)} unexplained; {len(rows) - len(compared)} not reached by one of them"
    )
    for number, harness in enumerate(HARNESSES):
        of_harness = [pair[number] for pair in runs]
        yield (
            f"{harness:9} {sum(run.seconds for run in of_harness):8.1f} s"
            f" {sum(run.cpu_seconds for run in of_harness):8.1f} CPU s"
            f" {sum(len(run.verdicts) for run in of_harness):5} verdicts"
        )
    for why, count in Counter(row.reason for row in differing if row.reason).most_common():
        yield f"  {count} × {why}"


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="files and folders of unittest files"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("/tmp/foreign-results"), help="where outputs are kept"
    )
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for a file under one harness")
    parser.add_argument("-k", dest="select", default="", help="only these tests, as pytest's -k has it")
    parser.add_argument("--seed", type=int, default=0, help="of the order of files and tests")
    parser.add_argument("--spawn", action="store_true", help="torch's ranks are new interpreters")
    asked = parser.parse_args()
    options = Options(asked.out.resolve(), asked.limit, asked.select, asked.seed, asked.spawn)
    adopt_orphans()
    files = find_files(asked.paths)
    random.Random(options.seed).shuffle(files)
    reasons, rows, runs, left_out = load_reasons(), [], [], Counter()
    for path in files:
        theirs = run_file(path, "torch", options)
        if theirs.broken:
            left_out[theirs.broken] += 1
            continue
        if not theirs.collected:
            left_out["no test, or skipped as a whole"] += 1
            continue
        ours = run_file(path, "disttest", options)
        runs.append((theirs, ours))
        of_file = compare(path.name, theirs, ours, reasons)
        rows += of_file
        print("\n".join(table(of_file)))
        print(
            f"== {path.name}: torch {theirs.seconds:.1f} s, {theirs.cpu_seconds:.1f} CPU s; "
            f"disttest {ours.seconds:.1f} s, {ours.cpu_seconds:.1f} CPU s",
            flush=True,
        )
    print("\n".join(totals(runs, rows, left_out)))
    sys.exit(any(row.compared and not row.same and not row.reason for row in rows))


if __name__ == "__main__":
    main()
