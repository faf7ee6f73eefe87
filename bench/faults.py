"""From a fault of a rank to the verdict of its test, and how far a hang overruns its deadline.

    python bench/faults.py [--rounds 3] [--slots 2] [--faults sigkill,hang,…] [--markdown] [--hostile]

Runs the whole fault matrix (tests/fixtures/faulty_suites/matrix.py) through the command. Each rank writes down the moment of its
fault; the journal has the moment of the verdict. A verdict includes the grace that the other ranks get (0.3 s by
default) and the evidence that is taken from them. With two slots one world runs at a time; more show a machine
under load. Prints one row for each fault, then the promises; fails if a verdict or a culprit is wrong, and asserts
no time. With ``--hostile`` the hostile trials (tests/support/hostile) run too, each in a folder of its own.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "entrypoint"), str(HERE / "tests" / "support")]

from fault_matrix import FAULTS, HANG_LIMIT_S, Cell, all_cells
from hostile import Trial, all_trials
from lab import Lab
from thorough import want_all

from disttest.model import Outcome, TestResult
from disttest.results.events import TestFinished
from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, read_events

CRASHES = ("sigkill", "sigsegv", "sigabrt", *(name for name in FAULTS if name.startswith("exit-")))


class Sample(NamedTuple):
    """What one cell showed in one round."""

    cell: Cell
    seconds: float
    """From the fault to the verdict; for a hang: from its deadline."""
    wrong: str
    """Why the verdict is not the right one; empty if it is."""


def run_matrix(cells: list[Cell], folder: Path, slots: int) -> None:
    """One run of the command over these cells; its results lie in ``folder/results``."""
    for name in ("matrix", "faults"):
        shutil.copy(HERE / "tests" / "fixtures" / "faulty_suites" / f"{name}.py", folder)
    (folder / "times").mkdir()
    path = os.pathsep.join([str(HERE / "entrypoint"), str(HERE / "tests" / "support")])
    subprocess.run(
        [sys.executable, "-m", "disttest", "run", "matrix.py", "--slots", str(slots)],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "DISTTEST_LOG_LIMIT": "1m",
            "FAULT_CELLS": ",".join(map(str, cells)),
            "FAULT_TIMES": str(folder / "times"),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def read_samples(cells: list[Cell], folder: Path) -> Iterator[Sample]:
    """What a run of the matrix showed."""
    journal = folder / "results" / FILE_NAME
    judged = [(event.at_s, event.result) for event in read_events(journal) if isinstance(event, TestFinished)]
    finals = {test.test.nodeid: test.final for test in fold(read_events(journal)).tests}
    for cell in cells:
        found = [(at_s, result) for at_s, result in judged if cell.is_in(result.nodeid.rpartition("::")[2])]
        if not found:
            yield Sample(cell, float("nan"), f"{cell}: no result")
            continue
        at_s, result = found[0]
        yield Sample(cell, _seconds(cell, at_s, result, folder), cell.check(finals[result.nodeid]))


def _seconds(cell: Cell, at_s: float, result: TestResult, folder: Path) -> float:
    if cell.what.slow:
        return at_s - result.started_at_s - HANG_LIMIT_S
    return at_s - float((folder / "times" / str(cell)).read_text())


def p99(values: list[float]) -> float:
    """The 99th percentile: the worst of fewer than a hundred."""
    return max(values) if len(values) < 100 else statistics.quantiles(values, n=100)[98]


def try_hostile(trial: Trial) -> str:
    """Why a trial's claim does not hold; empty if it does."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            trial.run(Lab(Path(folder)))
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the others are tried
            return f"{trial.id}: {trial.claim} Not so: {error!r}"
    return ""


def render(rows: list[tuple[str, ...]], *, markdown: bool) -> str:
    """A table; the first row is its head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    if markdown:
        lines = [f"| {line} |" for line in lines]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def fault_rows(samples: list[Sample]) -> Iterator[tuple[str, ...]]:
    """One row for each fault; no times for those that nobody has to notice."""
    yield ("fault", "cells", "median s", "p99 s", "right")
    for name, fault in FAULTS.items():
        mine = [sample for sample in samples if sample.cell.fault == name]
        if not mine:
            continue
        right = sum(not sample.wrong for sample in mine)
        timed = fault.verdict.outcome is not Outcome.PASSED
        times = [sample.seconds for sample in mine]
        shown = (f"{statistics.median(times):.2f}", f"{p99(times):.2f}") if timed else ("-", "-")
        yield (f"{name} (overrun)" if fault.slow else name, str(len(mine)), *shown, f"{right} of {len(mine)}")


def promise_rows(samples: list[Sample]) -> Iterator[tuple[str, ...]]:
    """The three figures that docs/reliability.md promises."""
    yield ("promise", "n", "median s", "p99 s")
    promises = {
        # A signal to its parent, or SIGSTOP, is no crash: nobody has died.
        "crash of a rank to verdict": lambda cell: cell.fault in CRASHES,
        "failure of a rank to verdict": lambda cell: cell.fault == "raise",
        "deadline to verdict of a hang": lambda cell: cell.what.slow and cell.fault != "sigstop-parent",
    }
    for name, is_in in promises.items():
        times = [sample.seconds for sample in samples if is_in(sample.cell)]
        if times:
            yield (name, str(len(times)), f"{statistics.median(times):.2f}", f"{p99(times):.2f}")


def describe_machine() -> str:
    """What the figures were taken on."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{len(os.sched_getaffinity(0))} processors, Python {platform.python_version()}, load {load}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--faults", default="", help="names with commas between them (default: all)")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--hostile", action="store_true", help="the hostile trials too")
    arguments = parser.parse_args()
    chosen = arguments.faults.split(",") if arguments.faults else list(FAULTS)
    cells = [cell for cell in all_cells() if cell.fault in chosen]
    before = describe_machine()
    samples: list[Sample] = []
    for number in range(1, arguments.rounds + 1):
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            run_matrix(cells, Path(folder), arguments.slots)
            samples += read_samples(cells, Path(folder))
        spent_s = time.monotonic() - began_s
        print(
            f"round {number} of {arguments.rounds}: {len(cells)} faults in {spent_s:.0f} s", file=sys.stderr
        )
    print(
        f"{arguments.rounds} rounds, {arguments.slots} slots; before: {before}; after: {describe_machine()}\n"
    )
    print(render(list(fault_rows(samples)), markdown=arguments.markdown), end="\n\n")
    print(render(list(promise_rows(samples)), markdown=arguments.markdown))
    wrong = [sample.wrong for sample in samples if sample.wrong]
    print(f"\nright verdict and culprit: {len(samples) - len(wrong)} of {len(samples)}", *wrong, sep="\n")
    if arguments.hostile:
        want_all()
        trials = all_trials()
        untrue = [why for why in map(try_hostile, trials) if why]
        print(f"hostile trials that held: {len(trials) - len(untrue)} of {len(trials)}", *untrue, sep="\n")
        wrong += untrue
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
