"""A report, and a table of a report, as the core and plugins make them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from disttest.model import Frozen
from disttest.reports.past_runs import PastRun
from disttest.results.fold import RunResult, TestOutcome

Write = Callable[[RunResult, Path, Sequence[PastRun], BinaryIO], None]
"""Writes one report of a run into an open file; gets the results directory and earlier runs, too."""


class Reporter(NamedTuple):
    """A format of reports."""

    file_name: str
    """In the results directory."""
    write: Write
    load: Callable[[], None] = lambda: None
    """Imports what writing needs. It is called while tests run, so that the end of the run does not wait for it."""


class Cell(Frozen):
    """A cell of a table."""

    letter: str
    """One character, for the terminal and the page."""
    meaning: str
    """The letter in a word; empty if there is nothing to explain."""
    is_bad: bool = False
    test: TestOutcome | None = None
    """The test that the page opens; None: it opens none."""


class ReportTable(Frozen):
    """A table of letters: a heading and a row of cells for each line."""

    section: str
    """The section of the page that shows it. Tables of one section follow each other."""
    title: str
    intro: str
    """The meaning of a cell, in a sentence."""
    corner: str
    """The heading of the first column: ``rank``."""
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    """The heading and the cells of each row."""
    legend: tuple[tuple[str, str], ...] = ()
    """Letter and meaning, for those that are explained below."""

    def lines(self, most: int = 100) -> Sequence[str]:
        """The table as text.

        Args:
            most: cells that are shown of a row, the first ones.
        """
        lines = []
        for heading, cells in self.rows:
            more = f" … {len(cells) - most} more" if len(cells) > most else ""
            lines.append(f"{self.corner} {heading}  {''.join(cell.letter for cell in cells[:most])}{more}")
        if self.legend:
            lines.append(", ".join(f"{letter} {meaning}" for letter, meaning in self.legend))
        return lines
