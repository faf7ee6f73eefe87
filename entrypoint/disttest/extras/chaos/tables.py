"""Tables of the faults of a run: one for each test and kind of fault, a row per rank, a column per call."""

from __future__ import annotations

from collections.abc import Iterator

from disttest.extras.chaos.case import NAME, FaultKind, fault_of
from disttest.reports.reporter import Cell, ReportTable
from disttest.reports.text import one_line
from disttest.results.fold import RunResult, TestOutcome

_KEPT = "kept"
_UNREACHED = "unreached"
_LETTERS = {
    _KEPT: "·",
    "hung": "H",
    "silent": "S",
    "wrong-numbers": "N",
    "died": "D",
    "failed": "F",
    "handler": "E",
    "other-error": "O",
    "late": "L",
    "left-behind": "B",
    _UNREACHED: "?",
}
"""Outcome of a fault -> its letter in a cell, gravest first."""
_UNTRIED = Cell(letter=" ", meaning="untried")

_Faults = dict[tuple[int, int], TestOutcome]
"""Rank and call -> the test with the fault in that call."""


def report_tables(run: RunResult) -> list[ReportTable]:
    """Make the tables of a run of ``disttest chaos``, in the order of its tests."""
    tables: dict[tuple[str, FaultKind], _Faults] = {}
    for test in run.tests:
        fault = fault_of(test.test)
        if fault is not None:
            # collected_as is the id without the fault, which all faults of a test share.
            found = tables.setdefault((test.test.collected_as, fault.kind), {})
            found[fault.rank, fault.call] = test
    return [_table(f"{kind} in {one_line(nodeid)}", faults) for (nodeid, kind), faults in tables.items()]


def _table(title: str, faults: _Faults) -> ReportTable:
    rows = tuple(_rows(faults))
    meanings = {cell.meaning for _, cells in rows for cell in cells if cell.is_bad}
    return ReportTable(
        section=NAME,
        title=title,
        intro=(
            "One cell for each call of the faulty rank: · means that the contract is kept; a letter names how it is broken and "
            "links to the test."
        ),
        corner="rank",
        rows=rows,
        legend=tuple((letter, meaning) for meaning, letter in _LETTERS.items() if meaning in meanings),
    )


def _rows(faults: _Faults) -> Iterator[tuple[str, tuple[Cell, ...]]]:
    last = max(call for _, call in faults)
    for rank in sorted({rank for rank, _ in faults}):
        yield str(rank), tuple(_cell(faults.get((rank, call))) for call in range(1, last + 1))


def _cell(test: TestOutcome | None) -> Cell:
    if test is None:
        return _UNTRIED
    kinds = [finding.kind for finding in test.final.findings if finding.finder == NAME]
    # A test in quarantine has broken its contract, although its outcome is not bad.
    if not (test.final.outcome.is_bad or kinds):
        return Cell(letter=_LETTERS[_KEPT], meaning=_KEPT)
    kind = kinds[0] if kinds else _UNREACHED
    return Cell(letter=_LETTERS.get(kind, "?"), meaning=kind, is_bad=True, test=test)
