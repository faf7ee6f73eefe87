"""Failures of a test besides the one that decides its verdict: in its tear-down, or in further subtests. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from disttest.model import Section, TestResult, rank_names
from disttest.results.findings import with_section
from disttest.results.verdict import is_consequence

SECTION = "further-failures"
_MOST = 10
_MOST_LINES = 15


class FurtherFailure(NamedTuple):
    """One failed phase or subtest."""

    rank: int | None
    """None for the pytest process, and for the main process of a class."""
    phase: str
    message: str
    details: str


def with_further_failures(result: TestResult, failures: Iterable[FurtherFailure]) -> TestResult:
    """Add a section with these failures to the result of a failed test, equal ones of several ranks once."""
    groups: dict[tuple[str, str], list[FurtherFailure]] = {}
    for failure in failures:
        # After a lost connection each clean-up fails as well.
        if not is_consequence(failure.message):
            groups.setdefault((failure.phase, failure.message), []).append(failure)
    if not groups or not result.outcome.is_bad:
        return result
    shown = [line for group in [*groups.values()][:_MOST] for line in _describe(group)]
    more = len(groups) - _MOST
    lines = (*shown, *([f"{more} more"] if more > 0 else []))
    return with_section(result, SECTION, Section(title="also failed", lines=lines))


def _describe(group: list[FurtherFailure]) -> Iterator[str]:
    first = group[0]
    ranks = sorted({each.rank for each in group if each.rank is not None})
    yield f"{f'{rank_names(ranks)}, ' if ranks else ''}{first.phase}: {first.message}"
    # The last lines of a traceback have the exception and its line.
    yield from (f"  {line}" for line in first.details.splitlines()[-_MOST_LINES:])
