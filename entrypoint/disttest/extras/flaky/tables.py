"""Tests in quarantine, in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Sequence

from disttest.extras.flaky.judging import InQuarantine, quarantine_of
from disttest.extras.history.records import is_quarantined
from disttest.reports.reporter import Cell, ReportTable
from disttest.reports.text import count, one_line
from disttest.results.fold import RunResult, TestOutcome

_LEGEND = (("✗", "failed, and does not count"), ("✓", "passed"), ("-", "did not run"))


def report_tables(run: RunResult) -> Sequence[ReportTable]:
    """One table, if the run has tests in quarantine: those that failed first."""
    found = [(test, entry) for test in run.tests if (entry := quarantine_of(test.test)) and not entry.expired]
    if not found:
        return ()
    found.sort(key=lambda row: not is_quarantined(row[0]))
    failed = sum(is_quarantined(test) for test, _ in found)
    table = ReportTable(
        section="quarantine",
        title=f"{count(len(found), 'test')}; the failures of {failed} do not fail the run",
        intro="Failures of these tests do not fail the run until the date of their entry.",
        corner="",
        rows=tuple((_heading(test, entry), (_cell(test),)) for test, entry in found),
        legend=_LEGEND,
    )
    return (table,)


def _heading(test: TestOutcome, entry: InQuarantine) -> str:
    link = f", {entry.link}" if entry.link else ""
    return one_line(f"{test.test.nodeid}: {entry.owner}, until {entry.expires}{link}, {entry.reason}", 300)


def _cell(test: TestOutcome) -> Cell:
    if is_quarantined(test):
        return Cell(letter="✗", meaning=one_line(test.final.message), test=test)
    ran = test.final.outcome.has_run
    return Cell(letter="✓" if ran else "-", meaning=str(test.final.outcome), test=test)
