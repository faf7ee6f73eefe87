"""Hooks of the cost of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    from disttest.reports.reporter import ReportFacts
    from disttest.results.fold import RunResult


@hookimpl
def disttest_report_facts(run: RunResult) -> Sequence[ReportFacts]:
    """Return the cost; no facts for a run that costs nothing."""
    from disttest.plugins.costs.lines import cost_lines
    from disttest.reports.reporter import ReportFacts

    return [ReportFacts(section="cost", facts=tuple(cost_lines(run)))]
