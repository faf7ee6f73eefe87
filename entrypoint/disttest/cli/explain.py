"""``disttest explain``: what went wrong in a stored run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from disttest.errors import UsageError
from disttest.reports.location import Repository, locate
from disttest.results.directory import DEFAULT
from disttest.results.fold import RunResult, TestOutcome, fold
from disttest.results.journal import FILE_NAME, read_events
from disttest.results.narrative import describe_ranks
from disttest.results.repeat import command_lines
from disttest.results.sanitized import describe_findings


@click.command()
@click.argument("words", nargs=-1, metavar="[DIR] [TEST]")
def explain(words: tuple[str, ...]) -> None:
    """Tell the finding of every failed test of the last run here (or that in DIR), or of tests whose id contains TEST."""
    results_dir, test = find_run(words)
    run = fold(read_events(results_dir / FILE_NAME))
    found = select(run, test)
    click.echo(
        "\n\n".join(render_explanation(outcome, run, results_dir) for outcome in found) or "nothing failed"
    )


def find_run(words: Sequence[str], folder: Path = Path()) -> tuple[Path, str]:
    """Where the run lies that is meant, and which of its tests; the text is empty for all that failed.

    Args:
        words: a directory, a part of a test's id, or both in this order.
        folder: where runs that were given no directory write.

    Raises:
        UsageError: there are more words.
    """
    if len(words) > 2:
        raise UsageError(f"explain takes a directory and a part of one test's id, not {len(words)} words")
    if words and (len(words) == 2 or Path(words[0]).is_dir()):
        return Path(words[0]), "".join(words[1:])
    runs = [folder / DEFAULT, *folder.glob(f"{DEFAULT}-*")]
    kept = [run for run in runs if (run / FILE_NAME).is_file()]
    return max(kept, key=lambda run: (run / FILE_NAME).stat().st_mtime, default=DEFAULT), "".join(words)


def select(run: RunResult, text: str) -> tuple[TestOutcome, ...]:
    """The failed tests, the flaky ones and those in which a sanitizer has found something, or all whose id contains a text.

    Raises:
        UsageError: no id contains it.
    """
    if not text:
        told = {outcome.test.nodeid for outcome in (*run.bad, *run.flaky)}
        warned = (each for each in run.tests if each.final.findings and each.test.nodeid not in told)
        return (*run.bad, *run.flaky, *warned)
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
