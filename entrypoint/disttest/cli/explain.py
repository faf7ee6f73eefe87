"""``disttest explain``: what went wrong in a stored run, told again."""

from __future__ import annotations

from pathlib import Path

import click

from disttest.errors import UsageError
from disttest.results.fold import RunResult, TestOutcome, fold
from disttest.results.journal import FILE_NAME, read_events
from disttest.results.narrative import describe_ranks
from disttest.results.repeat import repeat_command


@click.command()
@click.argument("results_dir", metavar="[DIR]", default="results", type=click.Path(path_type=Path))
@click.argument("test", required=False, default="")
def explain(results_dir: Path, test: str) -> None:
    """Tell the finding of every failed test of a run (or of the tests whose id contains TEST)."""
    run = fold(read_events(results_dir / FILE_NAME))
    found = select(run, test)
    click.echo(
        "\n\n".join(render_explanation(outcome, run, results_dir) for outcome in found) or "nothing failed"
    )


def select(run: RunResult, text: str) -> tuple[TestOutcome, ...]:
    """The failed tests and the flaky ones, or all whose id contains a text.

    Raises:
        UsageError: no id contains it.
    """
    if not text:
        return (*run.bad, *run.flaky)
    found = tuple(outcome for outcome in run.tests if text in outcome.test.nodeid)
    if not found:
        raise UsageError(f"no test of this run has {text!r} in its id; it has {len(run.tests)} tests")
    return found


def render_explanation(outcome: TestOutcome, run: RunResult, results_dir: Path) -> str:
    """Finding, node id, earlier attempts, every rank in a line, stacks, the culprit's traceback, how to repeat it."""
    result = outcome.final
    earlier = [attempt for attempt in outcome.attempts[:-1] if attempt.outcome.is_bad]
    parts = [
        result.message or str(result.outcome),
        f"  {outcome.test.nodeid}: {'flaky' if outcome.flaky else result.outcome}",
        *(f"  attempt {attempt.attempt}: {attempt.message}" for attempt in earlier),
        *describe_ranks(result, logs_in=f"{results_dir}/"),
        result.details,
        f"repeat: {repeat_command(outcome.test, run)}",
    ]
    return "\n".join(part for part in parts if part)
