"""What ``disttest explain`` tells of a stored run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from disttest.cli.stored_run import find_run, select
from disttest.reports.location import Repository, locate
from disttest.results.fold import RunResult, TestOutcome, fold
from disttest.results.journal import FILE_NAME, read_events
from disttest.results.narrative import describe_ranks
from disttest.results.repeat import command_lines
from disttest.results.sanitized import describe_findings


def explain_run(words: Sequence[str]) -> str:
    """The finding of each test that is meant.

    Args:
        words: a results directory, a part of a test's id, or both in this order.

    Raises:
        UsageError: no test is meant.
    """
    results_dir, test = find_run(words)
    run = fold(read_events(results_dir / FILE_NAME))
    found = select(run, test)
    return "\n\n".join(render_explanation(outcome, run, results_dir) for outcome in found) or "nothing failed"


def render_explanation(outcome: TestOutcome, run: RunResult, results_dir: Path) -> str:
    """Finding, node id, earlier attempts, every rank in a line, stacks, the culprit's traceback, how to repeat it."""
    result = outcome.final
    earlier = [attempt for attempt in outcome.attempts[:-1] if attempt.outcome.is_bad]
    parts = [
        result.message or str(result.outcome),
        f"  {outcome.test.nodeid}: {'flaky' if outcome.flaky else result.outcome}{_place(outcome, run)}",
        *(f"  attempt {attempt.attempt}: {attempt.message}" for attempt in earlier),
        *describe_ranks(result, logs_in=f"{results_dir}/"),
        result.details,
        *describe_findings(result.findings),
        *command_lines(outcome.test, result, run),
    ]
    return "\n".join(part for part in parts if part)


def _place(outcome: TestOutcome, run: RunResult) -> str:
    place = locate(outcome, Repository.of(run)) if outcome.final.outcome.is_bad else None
    return f" at {place}" if place else ""
