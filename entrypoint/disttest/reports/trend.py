"""An earlier run, read from its results directory, and its figures."""

from __future__ import annotations

from disttest.reports import aggregates
from disttest.reports.past_runs import PastRun, Point, when
from disttest.results.fold import RunResult


def point(run: RunResult) -> Point:
    """Return what a trend shows of a run."""
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
    """Return what later runs show of a run."""
    kinds = {test.test.nodeid: aggregates.classify(test) for test in run.tests}
    return PastRun(started_at_s=run.started_at_s, point=point(run), kinds=kinds)


def percent(rate: float) -> str:
    """Return a rate as people say it; a dot for none."""
    return f"{100 * rate:.1f} %" if rate else "·"
