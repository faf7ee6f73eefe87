"""Several runs side by side: how long they took, how often tests were flaky or machines broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from disttest.errors import UsageError
from disttest.model import UNREADABLE
from disttest.reports import aggregates, results_json
from disttest.reports.text import duration, one_line
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME as JOURNAL
from disttest.results.journal import read_events
from disttest.safe_open import read_regular

TICKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run in a trend."""

    label: str
    """When it started, in UTC."""
    run_id: str
    green: bool
    tests: int
    duration_s: float
    bad: int
    flake_rate: float
    """Flaky tests among those that ran, 0 to 1."""
    infrastructure_rate: float
    """Tests that failed because of the machine, among those that ran, 0 to 1."""


def load_run(results_dir: Path) -> RunResult:
    """Read a run back from a results directory: from its ``results.json``, or else from its journal.

    Raises:
        UsageError: there is neither.
    """
    path = results_dir / results_json.FILE_NAME
    try:
        return results_json.load_results_json(read_regular(path))
    except FileNotFoundError:
        pass
    except (OSError, *UNREADABLE):
        # Cut, or of another version: the journal tells the same.
        if not (results_dir / JOURNAL).is_file():
            raise UsageError(f"{path} cannot be read, and there is no {JOURNAL} beside it") from None
    try:
        return fold(read_events(results_dir / JOURNAL))
    except UsageError:
        message = f"no run in {results_dir}: neither {results_json.FILE_NAME} nor {JOURNAL} is there"
        raise UsageError(message) from None


def find_runs(folder: Path) -> list[Path]:
    """Return the results directories that a path stands for: itself, or those right below it, by name.

    Raises:
        UsageError: there is none.
    """
    found = [path for path in (folder, *sorted(folder.glob("*/"))) if _holds_run(path)]
    if not found:
        raise UsageError(f"no run in {folder} or right below it: a run leaves {JOURNAL} in its directory")
    return found


def _holds_run(path: Path) -> bool:
    return (path / results_json.FILE_NAME).is_file() or (path / JOURNAL).is_file()


def point(run: RunResult) -> Point:
    """Return what a trend shows of a run."""
    tally = aggregates.tally(run)
    ran = max(1, tally.total - tally.left_out)
    return Point(
        label=datetime.fromtimestamp(max(0.0, run.started_at_s), UTC).strftime("%Y-%m-%d %H:%M"),
        run_id=run.run_id,
        green=aggregates.is_green(run),
        tests=tally.total,
        duration_s=run.duration_s,
        bad=tally.bad,
        flake_rate=tally.flaky / ran,
        infrastructure_rate=tally.infrastructure / ran,
    )


def trend(runs: Sequence[RunResult]) -> list[Point]:
    """Return the points of several runs, oldest first."""
    return [point(run) for run in sorted(runs, key=lambda run: run.started_at_s)]


def marks(nodeid: str, runs: Sequence[dict[str, str]]) -> list[str]:
    """Return what a test came to in each run, in the names of :class:`digest.Tally`, or empty."""
    return [kinds.get(nodeid, "") for kinds in runs]


def kinds(run: RunResult) -> dict[str, str]:
    """Return node id -> what the test came to."""
    return {test.test.nodeid: aggregates.classify(test) for test in run.tests}


def sparkline(values: Sequence[float]) -> str:
    """Return one block per value, from zero to the largest."""
    top = max(values, default=0.0)
    return "".join(TICKS[round(value / top * (len(TICKS) - 1))] if top > 0 else TICKS[0] for value in values)


def print_trend(console: Console, points: Sequence[Point]) -> None:
    """Print a line for each run, and below them the curves."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("started (UTC)", "run", "result"):
        table.add_column(name, no_wrap=name != "run", overflow="fold")
    for name in ("tests", "bad", "time", "flaky", "infra"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in points:
        table.add_row(*_cells(entry))
    console.print(table)
    for name, values in curves(points).items():
        console.print(Text(f"{name:>12} {sparkline(values)}"))


def _cells(entry: Point) -> list[Text]:
    result = Text("green", style="green") if entry.green else Text("red", style="bold red")
    return [
        Text(entry.label),
        Text(one_line(entry.run_id, 40)),
        result,
        Text(f"{entry.tests:,}"),
        Text(f"{entry.bad:,}" if entry.bad else "·"),
        Text(duration(entry.duration_s)),
        Text(percent(entry.flake_rate)),
        Text(percent(entry.infrastructure_rate)),
    ]


def curves(points: Sequence[Point]) -> dict[str, list[float]]:
    """Return the three curves of a trend by name."""
    return {
        "duration": [entry.duration_s for entry in points],
        "flake rate": [entry.flake_rate for entry in points],
        "infra rate": [entry.infrastructure_rate for entry in points],
    }


def percent(rate: float) -> str:
    """Return a rate as people say it; a dot for none."""
    return f"{100 * rate:.1f} %" if rate else "·"
