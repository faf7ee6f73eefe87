"""Amount of text in ``junit.xml``, limited so that consumers can load the file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from disttest.results.fold import RunResult, TestOutcome

MAX_BYTES = 24_000_000
"""GitLab accepts files below 30 MB."""


@dataclass(frozen=True, kw_only=True)
class TextBudget:
    """Limits of the text of a test case."""

    details: int
    """Characters of a failure's text."""
    bad_log: int
    """Bytes of each rank's log for a failed test."""
    good_log: int
    """The same for a passed test."""

    lines_for_good: bool = False
    """Whether a passed test is a single line, without attached logs."""
    cut: str = ""
    """Description of the parts that are left out."""

    def scaled(self, factor: float, *, lines_for_good: bool = False) -> TextBudget:
        """Scale all limits down."""
        cut = "texts of failures and logs" if factor else "most text of failures, all text of logs"
        return TextBudget(
            details=int(self.details * factor) + 500,
            bad_log=int(self.bad_log * factor),
            good_log=int(self.good_log * factor),
            lines_for_good=lines_for_good,
            cut=cut + (", attachments of tests that passed" if lines_for_good else ""),
        )


def budgets_for(run: RunResult) -> list[TextBudget]:
    """Return the budgets to try, from the richest to the poorest, which is the last resort."""
    fair = _fair_budget(run)
    poorest = fair.scaled(0.0, lines_for_good=True)
    if _least_bytes(run) > MAX_BYTES:
        return [poorest]
    return [fair, *(fair.scaled(factor) for factor in (0.5, 0.1, 0.0)), poorest]


def _least_bytes(run: RunResult) -> int:
    """Estimate the minimum size with every log attached; the markup of a case takes about 150 bytes."""
    return sum(
        len(outcome.test.name)
        + len(outcome.test.classname)
        + len(outcome.test.file)
        + 150
        + sum(len(rank.log) + 18 for attempt in outcome.attempts for rank in attempt.ranks)
        for outcome in run.tests
    )


def _fair_budget(run: RunResult) -> TextBudget:
    failures = sum(attempt.outcome.is_bad for test in run.tests for attempt in test.attempts)
    ranks = Counter[bool]()
    for test in run.tests:
        ranks[has_failed(test)] += sum(len(attempt.ranks) for attempt in test.attempts)
    return TextBudget(
        details=min(60_000, 5_000_000 // max(1, failures)),
        bad_log=min(16_000, 8_000_000 // max(1, ranks[True])),
        good_log=min(2_000, 3_000_000 // max(1, ranks[False])),
    )


def has_failed(test: TestOutcome) -> bool:
    """Whether any attempt of a test failed."""
    return any(attempt.outcome.is_bad for attempt in test.attempts)
