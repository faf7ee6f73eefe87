"""Render the history: all of it, one test, the tests that failed or were flaky, and the lines of ``disttest trend``."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disttest.errors import DisttestError
from disttest.extras.history.hooks import NAME
from disttest.extras.history.queries import PastVerdict, read_past_runs, read_points, read_test
from disttest.extras.history.rates import describe_rate
from disttest.extras.history.sources import find_runs, holds_history, load_run
from disttest.reports.past_runs import (
    GREEN,
    RED,
    SHOWN_COMMIT,
    PastRun,
    Point,
    percent,
    point,
    when,
    words_of_streak,
)
from disttest.reports.reporter import Cell, ReportTable
from disttest.reports.text import count, duration, one_line
from disttest.results.fold import RunResult, TestOutcome

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


MARKS = {
    "passed": "▁",
    "xfailed": "▁",
    "flaky": "▄",
    "failed": "█",
    "infrastructure": "▓",
    "quarantined": "▒",
    "skipped": "·",
    "not_run": "·",
}
LEGEND = "▁ passed  ▄ passed when tried again  █ failed  ▒ failed in quarantine  ▓ broken machine  · not run"
FAILED = ("failed", "flaky", "quarantined")
"""Kinds of outcomes in which the test itself failed."""
MOST_TESTS = 50
TICKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """Return one block per value, from zero to the largest."""
    top = max(values, default=0.0)
    return "".join(TICKS[round(value / top * (len(TICKS) - 1))] if top > 0 else TICKS[0] for value in values)


def sparks(kinds: Iterable[str]) -> str:
    """Return one block for each outcome."""
    return "".join(MARKS[kind] for kind in kinds)


def show_test(connection: sqlite3.Connection, name: str, *, branch: str, last: int) -> Iterator[str]:
    """Render the past of a test: outcomes, failure rate, start of its failures, messages, and each of the last runs.

    Args:
        connection: connection to the history.
        name: name of the test.
        branch: only runs of this branch; empty for all.
        last: number of runs to list.
    """
    past = read_test(connection, name, branch=branch)
    shown = past[-last:]
    yield one_line(name, 1000)
    yield f"  {sparks(each.kind for each in shown)}  {describe_past(past)}"
    if streak := streak_of(past):
        yield f"  {streak}"
    for message, times in Counter(each.message for each in past if each.message).most_common(3):
        yield f"  {times} times: {message}"
    yield ""
    yield from (f"  {_line(each)}" for each in reversed(shown))


def describe_past(past: Sequence[PastVerdict]) -> str:
    """Describe the failure rate of a test over its runs; broken machines and skips do not count."""
    ran = [each for each in past if each.kind in (*GREEN, *FAILED)]
    failed = sum(each.kind in FAILED for each in ran)
    return describe_rate(failed, len(ran)) if ran else "never ran"


def streak_of(past: Sequence[PastVerdict]) -> str:
    """Describe where the failures began of a test that failed in its last run; empty if it did not fail."""
    last = past[-1] if past else None
    if last is None or last.kind not in RED:
        return ""
    # Other branches may have been red for other reasons.
    of_branch = [each for each in past[:-1] if each.branch == last.branch]
    words = words_of_streak([(each.kind, name_of(each)) for each in of_branch], is_red=True)
    return words.replace("this run", name_of(last)) or f"red since {name_of(last)}, its first run"


def name_of(verdict: PastVerdict) -> str:
    """Name a run by its commit, or by its date without one."""
    dirty = "+" if verdict.is_dirty else ""
    return f"{verdict.commit[:SHOWN_COMMIT]}{dirty}" if verdict.commit else when(verdict.at_s)


def _line(verdict: PastVerdict) -> str:
    took = "" if verdict.duration_s is None else duration(verdict.duration_s)
    return (
        f"{when(verdict.at_s)}  {name_of(verdict):<{SHOWN_COMMIT + 1}}  {one_line(verdict.branch, 20):<20}  "
        f"{verdict.kind:<14} {took:>9}  {one_line(verdict.message, 80)}"
    ).rstrip()


def show_all(connection: sqlite3.Connection, *, branch: str, last: int) -> Iterator[str]:
    """Render the extent of the history, and the tests that failed in its last runs, the most frequent failures first.

    Args:
        connection: connection to the history.
        branch: only runs of this branch; empty for all.
        last: number of runs.
    """
    runs = connection.execute(
        "SELECT id, started_at_s FROM run WHERE :branch IN ('', branch) ORDER BY started_at_s DESC, id DESC LIMIT :last",
        {"branch": branch, "last": last},
    ).fetchall()
    if not runs:
        yield f"no run of branch {branch}" if branch else "no run"
        return
    tests = connection.execute("SELECT count(*) FROM test").fetchone()[0]
    every = connection.execute("SELECT count(*) FROM run").fetchone()[0]
    period = f"{when(runs[-1][1])} to {when(runs[0][1])} (UTC)"
    yield f"{count(every, 'run')} of {count(tests, 'test')}; the last {len(runs)}: {period}"
    rows = _unsteady(connection, [run[0] for run in reversed(runs)])
    if not rows:
        yield "no test failed in them"
        return
    yield LEGEND
    yield from (f"  {sparks(kinds)}  {one_line(name, 300)}" for name, kinds in rows[:MOST_TESTS])
    if len(rows) > MOST_TESTS:
        yield f"  … and {count(len(rows) - MOST_TESTS, 'more test')}"


def _unsteady(connection: sqlite3.Connection, runs: Sequence[int]) -> list[tuple[str, list[str]]]:
    """Return name and outcomes of each test that failed in one of these runs."""
    found: dict[str, dict[int, str]] = {}
    for run in runs:
        rows = connection.execute(
            "SELECT test.name, kind.name FROM verdict JOIN test ON test.id = verdict.test "
            "JOIN kind ON kind.id = verdict.kind WHERE run = ?",
            (run,),
        )
        for name, kind in rows:
            found.setdefault(name, {})[run] = kind
    bad = ((name, [kinds.get(run, "not_run") for run in runs]) for name, kinds in found.items())
    unsteady = [(name, kinds) for name, kinds in bad if {*RED, *FAILED} & set(kinds)]
    return sorted(unsteady, key=lambda row: (-sum(kind in (*RED, *FAILED) for kind in row[1]), row[0]))


def past_runs_of(run: RunResult) -> list[PastRun]:
    """Read the runs before this one from the history of the run; none if there is no file yet.

    Raises:
        UsageError: the file cannot be used.
    """
    file = run.invocation.data.get(NAME, {}).get("file", "")
    if not file or not Path(file).exists():
        return []
    return read_past_runs(Path(file), without=run.run_id, before_s=run.started_at_s)


def report_tables(run: RunResult) -> Sequence[ReportTable]:
    """Make a table if a test failed or was flaky and there are earlier runs."""
    shown = [*run.bad, *run.flaky][:MOST_TESTS]
    try:
        earlier = past_runs_of(run) if shown else []
    except DisttestError:
        return ()  # the page explains why it has no earlier runs
    if not earlier:
        return ()
    table = ReportTable(
        section=NAME,
        title=f"the last {len(earlier)} runs of what failed here",
        intro="Each cell is an earlier run of the test, the oldest first.",
        corner="",
        rows=tuple((_heading(test, earlier, run), _cells(test, earlier)) for test in shown),
        legend=(("▁", "passed"), ("▄", "flaky"), ("█", "failed"), ("▓", "broken machine"), ("·", "not run")),
    )
    return (table,)


def _heading(test: TestOutcome, earlier: Sequence[PastRun], run: RunResult) -> str:
    branch = run.invocation.data[NAME].get("branch", "")
    past = [(each.kinds.get(test.test.nodeid, ""), each.name) for each in earlier if each.branch == branch]
    words = words_of_streak(past, is_red=test.final.outcome.is_bad)
    return f"{test.test.nodeid}: {words}" if words else test.test.nodeid


def _cells(test: TestOutcome, earlier: Sequence[PastRun]) -> tuple[Cell, ...]:
    kinds = [(each.kinds.get(test.test.nodeid, "not_run"), each) for each in earlier]
    return tuple(
        Cell(letter=MARKS[kind], meaning=f"{kind.replace('_', ' ')}, {each.name}", is_bad=kind == "failed")
        for kind, each in kinds
    )


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
    # Labels are dates in the order of ISO 8601, so their order is that of time.
    return sorted(points, key=lambda each: each.label)


def print_trend(console: Console, points: Sequence[Point]) -> None:
    """Print a line for each run, with the curves below."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("started (UTC)", "run", "result"):
        table.add_column(name, no_wrap=name != "run", overflow="fold")
    for name in ("tests", "bad", "time", "flaky", "infra"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in points:
        table.add_row(*_trend_cells(entry))
    console.print(table)
    for name, values in curves(points).items():
        console.print(Text(f"{name:>12} {sparkline(values)}"))


def _trend_cells(entry: Point) -> list[Text]:
    from rich.text import Text

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
