"""Figures of an earlier run, from its results directory."""

from __future__ import annotations

from disttest.reports import aggregates
from disttest.reports.past_runs import PastRun, Point, when
from disttest.results.fold import RunResult


def point(run: RunResult) -> Point:
    """Compute the figures of a run for a trend."""
    tally = aggregates.tally(run)
    ran = max(1, tally.total - tally.left_out)
    return Point(
        label=when(run.started_at_s),
        run_id=run.run_id,
        green=aggregates.is_green(run),
        tests=tally.total,
        duration_s=run.duration_s,
        bad=tally.bad,
        flake_rate=tally.flaky / ran,
        infrastructure_rate=tally.infrastructure / ran,
    )


def past_run(run: RunResult) -> PastRun:
    """Reduce a run to the data that later runs show."""
    kinds = {test.test.nodeid: aggregates.classify(test) for test in run.tests}
    return PastRun(started_at_s=run.started_at_s, point=point(run), kinds=kinds)


def percent(rate: float) -> str:
    """Format a rate for people; a dot for zero."""
    return f"{100 * rate:.1f} %" if rate else "·"
