"""Hooks of the history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl
from disttest.options.option import rows_of
from disttest.options.values import COUNT, path, text

if TYPE_CHECKING:
    import click

    from disttest.cli.run_request import RunRequest
    from disttest.extras.history.git_facts import CommitFacts
    from disttest.options.option import Option
    from disttest.planning.timings import Sample, WorldStart
    from disttest.reports.past_runs import PastRun
    from disttest.reports.reporter import ReportTable
    from disttest.results.fold import RunResult

NAME = "history"
USUAL = Path("disttest-history.sqlite")

FILE = rows_of("run", NAME)(
    "history",
    path("FILE"),
    "File that keeps the outcomes of runs. A run shows the past of its tests from it, and records its commit.",
    has_variable=True,
    for_command=True,
    inputs=("run",),
    otherwise=f"none; {USUAL} for disttest history",
)

_history = rows_of(NAME)

OPTIONS = (
    FILE,
    _history(
        "commit", text("COMMIT"), "Commit of added results that do not say it (JUnit).", default="", inputs=()
    ),
    _history(
        "branch",
        text("NAME"),
        "Branch of added results that do not say it; or the one to show.",
        default="",
        inputs=(),
    ),
    _history(
        "project",
        text("NAME"),
        "Project of the added results, such as github.com/org/project.",
        otherwise="the one that they were recorded with",
        default="",
        inputs=(),
    ),
    _history("last", COUNT, "How many runs to show.", default=30, inputs=()),
)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Option ``--history``, and the options of the command."""
    from disttest.extras.history.hooks import OPTIONS

    return OPTIONS


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest history`` and ``disttest trend``."""
    from disttest.extras.history.command import history, trend

    group.add_command(history)
    group.add_command(trend)


@hookimpl
def disttest_prepare_run(request: RunRequest) -> None:
    """Refuse an unreadable history before tests run, not after."""
    from disttest.extras.history.hooks import FILE

    file = request.settings[FILE.field]
    if file is not None and file.exists():
        from disttest.extras.history.store import reading

        with reading(file):
            pass


@hookimpl
def disttest_run_data(request: RunRequest) -> CommitFacts | None:
    """Record the commit of the run: always in CI, elsewhere if the run has a history."""
    from disttest.extras.history.git_facts import facts_of

    return facts_of(request)


@hookimpl
def disttest_past_runs(run: RunResult) -> Sequence[PastRun]:
    """Read the earlier runs from the history of the run."""
    from disttest.extras.history.hooks import NAME

    if NAME not in run.invocation.data:
        return ()
    from disttest.extras.history.shown import past_runs_of

    return past_runs_of(run)


@hookimpl
def disttest_read_past_runs(path: Path) -> Sequence[PastRun] | None:
    """Read the runs of a history file, or the run of a results directory."""
    from disttest.extras.history.sources import holds_history

    if holds_history(path):
        from disttest.extras.history.queries import read_past_runs

        return read_past_runs(path)
    from disttest.extras.history.sources import load_run
    from disttest.reports.past_runs import past_run

    return [past_run(load_run(path))]


@hookimpl
def disttest_read_timings(path: Path, head: bytes) -> Iterable[Sample | WorldStart | str] | None:
    """Read the durations from a history file."""
    from disttest.extras.history.schema import is_history

    if not is_history(head):
        return None
    from disttest.extras.history.queries import read_timings

    return read_timings(path)


@hookimpl
def disttest_report_tables(run: RunResult) -> Sequence[ReportTable]:
    """Show the past of the tests that failed."""
    from disttest.extras.history.hooks import NAME

    if NAME not in run.invocation.data:
        return ()
    from disttest.extras.history.shown import report_tables

    return report_tables(run)
