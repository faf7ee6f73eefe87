"""The text of ``disttest explain``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from disttest.cli.stored_run import find_run, read_run, select
from disttest.errors import MEANINGS, ExitCode
from disttest.extras.explain.message_page import next_step
from disttest.reports.location import Repository, locate
from disttest.results.findings import describe_plugins
from disttest.results.fold import RunResult, TestOutcome
from disttest.results.narrative import describe_ranks
from disttest.results.repeat import command_lines


class Explanation(NamedTuple):
    """The text about a run, and the exit code of the run."""

    text: str
    exit_code: int


def explain_run(words: Sequence[str]) -> Explanation:
    """Return the findings of the selected tests; without a selection, also how the run ended.

    Args:
        words: a results directory, a part of a test's id, or both in this order.

    Raises:
        UsageError: no test matches, or there is no journal.
    """
    results_dir, test = find_run(words)
    run = read_run(results_dir)
    parts = [render_explanation(outcome, run, results_dir) for outcome in select(run, test)]
    if not test:
        parts += [
            f"{error.nodeid} could not be collected: {error.message}" for error in run.collection_errors
        ]
        parts += _conclusion(run)
    return Explanation("\n\n".join(parts) or "nothing failed", run.exit_code)


def _conclusion(run: RunResult) -> list[str]:
    """Say how the run ended, unless its failed tests say so."""
    code = run.exit_code
    if not code or (code == ExitCode.FAILED and run.bad and not run.reason):
        return []
    known = MEANINGS[ExitCode(code)] if code in set(ExitCode) else ""
    why = run.reason or known
    return [f"the run ended with exit code {code}{f': {why}' if why else ''}"]


def render_explanation(outcome: TestOutcome, run: RunResult, results_dir: Path) -> str:
    """Join finding, node id, earlier attempts, a line for each rank, traceback of the culprit, and commands that repeat it."""
    result = outcome.final
    earlier = [attempt for attempt in outcome.attempts[:-1] if attempt.outcome.is_bad]
    parts = [
        result.message or str(result.outcome),
        f"  {outcome.test.nodeid}: {'flaky' if outcome.flaky else result.outcome}{_place(outcome, run)}",
        f"  what to do: {step}" if (step := next_step(result.message)) else "",
        *(f"  attempt {attempt.attempt}: {attempt.message}" for attempt in earlier),
        *describe_ranks(result, logs_in=f"{results_dir}/"),
        result.details,
        *describe_plugins(result),
        *command_lines(outcome.test, result, run),
    ]
    return "\n".join(part for part in parts if part)


def _place(outcome: TestOutcome, run: RunResult) -> str:
    place = locate(outcome, Repository.of(run)) if outcome.final.outcome.is_bad else None
    return f" at {place}" if place else ""
