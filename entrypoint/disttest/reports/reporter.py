"""Interface of reports, tables and facts, for the core and for plugins; the tables and facts that plugins add."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from disttest.model import Frozen
from disttest.plugin_manager import plugin_manager
from disttest.reports.past_runs import PastRun
from disttest.results.fold import RunResult, TestOutcome

Write = Callable[[RunResult, Path, Sequence[PastRun], BinaryIO], None]
"""Writes one report of a run into an open file, given the results directory and earlier runs."""


class Reporter(NamedTuple):
    """A report format."""

    file_name: str
    """Name of the file in the results directory."""
    write: Write
    load: Callable[[], None] = lambda: None
    """Imports the modules for writing; called during the tests, so that the end of the run does not wait."""


class Cell(Frozen):
    """A cell of a table."""

    letter: str
    """One character, for the terminal and the page."""
    meaning: str
    """Meaning of the letter; empty if it needs no explanation."""
    is_bad: bool = False
    test: TestOutcome | None = None
    """The test that the page opens for the cell; None if it opens none."""


class ReportTable(Frozen):
    """A table of letters: a heading and a row of cells for each line."""

    section: str
    """Section of the page that shows it; tables of one section follow each other."""
    title: str
    intro: str
    """Meaning of a cell, in a sentence."""
    corner: str
    """Heading of the first column: ``rank``."""
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    """Heading and cells of each row."""
    legend: tuple[tuple[str, str], ...] = ()
    """Letter and meaning, for letters that are explained below the table."""

    def lines(self, most: int = 100) -> Sequence[str]:
        """Return the table as text.

        Args:
            most: maximum number of cells in a row.
        """
        lines = []
        for heading, cells in self.rows:
            more = f" … {len(cells) - most} more" if len(cells) > most else ""
            lines.append(f"{self.corner} {heading}  {''.join(cell.letter for cell in cells[:most])}{more}")
        if self.legend:
            lines.append(", ".join(f"{letter} {meaning}" for letter, meaning in self.legend))
        return lines


class ReportFacts(Frozen):
    """Facts about the whole run, below a heading."""

    section: str
    """Heading, in lower case."""
    facts: tuple[tuple[str, str], ...]
    """Name and text of each fact."""


def facts_of(run: RunResult) -> list[ReportFacts]:
    """Return the facts that plugins add; none without a text."""
    found = plugin_manager().items("disttest_report_facts", ReportFacts, run=run)
    return [each for _, each in found if each.facts]


def tables_by_section(run: RunResult, most: int) -> list[tuple[str, list[ReportTable]]]:
    """Group the tables by section.

    Args:
        run: the run.
        most: maximum number of tables.
    """
    found = (table for _, table in plugin_manager().items("disttest_report_tables", ReportTable, run=run))
    # Tables of one section follow each other (`ReportTable.section`), so `groupby` needs no sort.
    return [
        (name, list(tables)) for name, tables in groupby(islice(found, most), lambda table: table.section)
    ]
