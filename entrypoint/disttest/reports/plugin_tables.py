"""Tables that plugins add to the reports of a run."""

from __future__ import annotations

from itertools import groupby, islice

from disttest.plugin_manager import plugin_manager
from disttest.reports.reporter import ReportTable
from disttest.results.fold import RunResult


def tables_by_section(run: RunResult, most: int) -> list[tuple[str, list[ReportTable]]]:
    """Group the tables by section.

    Args:
        run: the run.
        most: maximum number of tables.
    """
    found = (table for _, table in plugin_manager().items("disttest_report_tables", ReportTable, run=run))
    return [
        (name, list(tables)) for name, tables in groupby(islice(found, most), lambda table: table.section)
    ]
