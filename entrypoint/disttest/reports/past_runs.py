"""Earlier runs in the form that reports of a later run show: their figures, and the outcome of each test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from disttest.results.fold import RunResult

RED = ("failed", "infrastructure")
"""Kinds of outcomes that make a run red, as :func:`disttest.reports.aggregates.classify` names them."""
GREEN = ("passed", "flaky", "xfailed")
SHOWN_COMMIT = 10
"""Characters of a commit that reports show."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run in a trend."""

    label: str
    """Start of the run, in UTC."""
    run_id: str
    green: bool
    tests: int
    duration_s: float
    bad: int
    flake_rate: float
    """Share of flaky tests among those that ran, 0 to 1."""
    infrastructure_rate: float
    """Share of tests that failed because of the machine, among those that ran, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """An earlier run."""

    started_at_s: float
    point: Point
    kinds: Mapping[str, str] = field(repr=False)
    """Node id -> kind of outcome."""
    commit: str = ""
    """Empty if unknown."""
    branch: str = ""

    @property
    def name(self) -> str:
        """The commit, or the date without one."""
        return self.commit[:SHOWN_COMMIT] or when(self.started_at_s)


def when(at_s: float) -> str:
    """Format a time as reports show it, in UTC."""
    return datetime.fromtimestamp(max(0.0, at_s), UTC).strftime("%Y-%m-%d %H:%M")


def words_of_streak(past: Sequence[tuple[str, str]], *, is_red: bool) -> str:
    """Describe where the latest failures of a test began: ``red since 1a2b3c4d5e (3 runs), last passed at 5f6a7b8c9d``.

    Args:
        past: kind and name of each earlier run of the test, oldest first.
        is_red: whether it fails now; otherwise the result is empty.
    """
    ran = [(kind, name) for kind, name in past if kind in (*RED, *GREEN)]
    if not is_red or not ran:
        return ""
    streak = 0
    while streak < len(ran) and ran[-1 - streak][0] in RED:
        streak += 1
    passed = ran[-1 - streak][1] if streak < len(ran) else ""
    begun = f"red since {ran[-streak][1]} ({streak + 1} runs)" if streak else "red since this run"
    return f"{begun}, {f'last passed at {passed}' if passed else f'never passed in {len(ran)} earlier runs'}"


def point(run: RunResult) -> Point:
    """Compute the figures of a run for a trend."""
    from disttest.reports import aggregates

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
    # Needs the options of all plugins, and plugins import this module while they load.
    from disttest.reports import aggregates

    kinds = {test.test.nodeid: aggregates.classify(test) for test in run.tests}
    return PastRun(started_at_s=run.started_at_s, point=point(run), kinds=kinds)


def percent(rate: float) -> str:
    """Format a rate for people; a dot for zero."""
    return f"{100 * rate:.1f} %" if rate else "·"
