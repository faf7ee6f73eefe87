"""Tests that ``--changed`` left out, in the terminal and in reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from disttest.extras.changed.choice import CANARY, ENVIRONMENT, EVERYTHING, Choice
from disttest.extras.changed.limits import REPORTED_TESTS
from disttest.extras.changed.option_rows import NAME
from disttest.reports.reporter import Cell, ReportTable
from disttest.reports.text import count, one_line
from disttest.results.fold import RunResult, TestOutcome


def notes_of(choice: Choice) -> Sequence[str]:
    """Describe a selection before the first test."""
    since = f"--changed since {choice.base[:10]}"
    if choice.everything_because:
        return (f"{since}: every test runs, because {choice.everything_because}",)
    kinds = Counter(reason.why for reason in choice.selected.values())
    selected = ", ".join(f"{number} {why}" for why, number in kinds.items())
    gpu_minutes = f" and {choice.saved_gpu_s / 60:.1f} GPU minutes" if choice.saved_gpu_s else ""
    summary = (
        f"{since}: {count(len(choice.selected), 'test')} selected ({selected or 'none'}), {choice.left_out} left out, "
        f"which saves {choice.saved_s:.1f} s of tests{gpu_minutes}; without --changed every test runs"
    )
    environment = next((reason.by for reason in choice.selected.values() if reason.why == ENVIRONMENT), "")
    if not environment:
        return (summary,)
    return (
        summary,
        f"{since}: the environment of {count(kinds[ENVIRONMENT], 'test')} changed ({one_line(environment, 300)})",
    )


def report_tables(run: RunResult) -> Sequence[ReportTable]:
    """One table: the number of tests that were left out, tests that ran by reason, and canaries that failed."""
    try:
        choice = msgspec.convert(run.invocation.data.get(NAME), Choice)
    except msgspec.ValidationError:  # of a later version
        return ()
    outcomes = {test.test.nodeid: test for test in run.tests}
    missed = [test for test in outcomes.values() if test.final.outcome.is_bad and _why(test) == CANARY]
    rows = [
        (f"miss: {test.test.nodeid} failed, although no part that it uses changed", _cell(test))
        for test in missed
    ]
    rows += [(f"{count(choice.left_out, 'test')} left out", (Cell(letter="-", meaning="did not run")))]
    affected = [test for test in outcomes.values() if _why(test) not in (CANARY, EVERYTHING, "")]
    rows += [(_heading(test), _cell(test)) for test in affected[:REPORTED_TESTS]]
    table = ReportTable(
        section=NAME,
        title=f"{count(len(choice.selected), 'test')} selected, {choice.left_out} left out",
        intro="Tests that ran, and the reasons. Tests that were left out have neither passed nor failed.",
        corner="",
        rows=tuple((heading, (cell,)) for heading, cell in rows),
    )
    return (table,)


def _data(test: TestOutcome) -> dict[str, str]:
    return test.test.data.get(NAME) or {}


def _why(test: TestOutcome) -> str:
    return _data(test).get("why", "")


def _heading(test: TestOutcome) -> str:
    by = _data(test).get("by", "")
    return one_line(f"{test.test.nodeid}: {_why(test)}{f' by {by}' if by else ''}", 300)


def _cell(test: TestOutcome) -> Cell:
    bad = test.final.outcome.is_bad
    return Cell(letter="✗" if bad else "✓", meaning=str(test.final.outcome), is_bad=bad, test=test)
