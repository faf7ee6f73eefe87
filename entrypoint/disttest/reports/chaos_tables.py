"""The faults of a run as tables: one for each test and kind of fault, ranks down, calls across."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from disttest.model import CHAOS, FaultKind
from disttest.reports.text import one_line
from disttest.results.fold import RunResult, TestOutcome

KEPT = "kept"
UNTRIED = "untried"
_UNREACHED = "unreached"
LETTERS = {
    KEPT: "·",
    UNTRIED: " ",
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
"""What stands in a cell: each way to break a contract has its own letter."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A fault."""

    outcome: str
    """``kept``, how the contract was broken, or ``untried``."""
    test: TestOutcome | None = None

    @property
    def letter(self) -> str:
        """It in a character."""
        return LETTERS.get(self.outcome, "?")


@dataclass(frozen=True, kw_only=True)
class FaultTable:
    """All faults of one kind in one test."""

    title: str
    """``kill in test_x.py::test_step[4xgloo]``."""
    ranks: dict[int, tuple[Cell, ...]]
    """Rank -> its calls, from the first one."""

    @property
    def broken(self) -> list[str]:
        """The ways in which the contract is broken somewhere, gravest first."""
        found = {cell.outcome for row in self.ranks.values() for cell in row}
        return [outcome for outcome in LETTERS if outcome in found - {KEPT, UNTRIED}]


def fault_tables(run: RunResult) -> list[FaultTable]:
    """The tables of a run of ``disttest chaos``, in the order of its tests; none of any other run."""
    tables: dict[tuple[str, FaultKind], dict[tuple[int, int], TestOutcome]] = {}
    for test in run.tests:
        fault = test.test.chaos.fault if test.test.chaos else None
        if fault is not None:
            found = tables.setdefault((test.test.collected_as, fault.kind), {})
            found[fault.rank, fault.call] = test
    return [
        FaultTable(title=f"{kind} in {one_line(nodeid)}", ranks=dict(_rows(cells)))
        for (nodeid, kind), cells in tables.items()
    ]


def _rows(cells: dict[tuple[int, int], TestOutcome]) -> Iterator[tuple[int, tuple[Cell, ...]]]:
    last = max(call for _, call in cells)
    for rank in sorted({rank for rank, _ in cells}):
        yield rank, tuple(_cell(cells.get((rank, call))) for call in range(1, last + 1))


def _cell(test: TestOutcome | None) -> Cell:
    if test is None:
        return Cell(outcome=UNTRIED)
    if not test.final.outcome.is_bad:
        return Cell(outcome=KEPT, test=test)
    kinds = [finding.kind for finding in test.final.findings if finding.sanitizer == CHAOS]
    return Cell(outcome=kinds[0] if kinds else _UNREACHED, test=test)


def table_lines(table: FaultTable, most: int = 100) -> Iterator[str]:
    """A table as text: a row for each rank, a letter for each call, and what the letters mean.

    Args:
        table: of one test and kind.
        most: calls that are shown, the first ones.
    """
    for rank, cells in table.ranks.items():
        more = f" … {len(cells) - most} more" if len(cells) > most else ""
        yield f"rank {rank}  {''.join(cell.letter for cell in cells[:most])}{more}"
    if table.broken:
        yield ", ".join(f"{LETTERS[outcome]} {outcome}" for outcome in table.broken)
