"""Past of the tests that failed or were flaky, as a table for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from disttest.errors import DisttestError
from disttest.extras.history.option_rows import NAME
from disttest.extras.history.queries import read_past_runs
from disttest.extras.history.shown import MARKS, MOST_TESTS
from disttest.reports.past_runs import PastRun, words_of_streak
from disttest.reports.reporter import Cell, ReportTable
from disttest.results.fold import RunResult, TestOutcome


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
