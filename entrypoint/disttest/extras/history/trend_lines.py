"""Lines of ``disttest trend``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from disttest.extras.history.queries import read_points
from disttest.extras.history.shown import sparkline
from disttest.extras.history.sources import find_runs, holds_history, load_run
from disttest.reports.past_runs import Point
from disttest.reports.text import duration, one_line
from disttest.reports.trend import percent, point


def points_of(paths: Sequence[Path]) -> list[Point]:
    """Return the figures of the runs in some places, the oldest first.

    Raises:
        UsageError: a place has no run, or is a history that cannot be used.
    """
    points: list[Point] = []
    runs = []
    for path in paths:
        if holds_history(path):
            points += read_points(path)
        else:
            runs += [load_run(folder) for folder in find_runs(path)]
    points += [point(run) for run in sorted(runs, key=lambda run: run.started_at_s)]
    return sorted(points, key=lambda each: each.label)


def print_trend(console: Console, points: Sequence[Point]) -> None:
    """Print a line for each run, with the curves below."""
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
