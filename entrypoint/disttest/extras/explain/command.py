"""The command ``disttest explain``, and its text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from disttest.cli.purposes import Purpose, serves
from disttest.errors import MEANINGS, ExitCode
from disttest.extras.explain.hooks import TEXT
from disttest.options.flags import ShowingCommand, flags
from disttest.results.fold import RunResult, TestOutcome


@serves(Purpose.RESULTS)
@click.command(cls=ShowingCommand)
@click.argument("words", nargs=-1, metavar="[DIR] [TEST] | ID")
@flags("explain")
@click.pass_context
def explain(context: click.Context, /, words: tuple[str, ...], **given: Any) -> None:
    """Show the finding of every failed test of the last run here (or that in DIR), or of tests whose id contains TEST.

    The exit code is that of the run; with --packet, --format github-issue or the id of a message it is 0.

    \b
    disttest explain rank-killed                            what to do about a message, by its id
    disttest explain --packet test_sum                      all evidence of one test in a folder
    disttest explain --packet test_sum --output sum.zip     the same in an archive
    disttest explain --format github-issue test_sum         the body of an issue
    """
    from disttest.extras.explain.message_page import in_terminal, section_named

    # A results directory with the name of an id is read as a directory.
    if len(words) == 1 and (section := section_named(words[0])) and not Path(words[0]).exists():
        click.echo(in_terminal(section))
        return
    if given["packet"] or given["format"] != TEXT:
        from disttest.extras.explain.packet_run import make_packet

        click.echo(make_packet(words, given))
        return
    text, exit_code = explain_run(words)
    click.echo(text)
    context.exit(exit_code)


def explain_run(words: Sequence[str]) -> tuple[str, int]:
    """Return the findings of the selected tests (without a selection, also how the run ended), and the exit code of the run.

    Args:
        words: a results directory, a part of a test's id, or both in this order.

    Raises:
        UsageError: no test matches, or there is no journal.
    """
    from disttest.cli.stored_run import find_run, read_run, select

    results_dir, test = find_run(words)
    run = read_run(results_dir)
    parts = [render_explanation(outcome, run, results_dir) for outcome in select(run, test)]
    if not test:
        parts += [
            f"{error.nodeid} could not be collected: {error.message}" for error in run.collection_errors
        ]
        parts += _conclusion(run)
    return "\n\n".join(parts) or "nothing failed", run.exit_code


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
    from disttest.results.findings import describe_plugins
    from disttest.results.narrative import describe_ranks
    from disttest.results.repeat import command_lines

    result = outcome.final
    earlier = [attempt for attempt in outcome.attempts[:-1] if attempt.outcome.is_bad]
    parts = [
        result.message or str(result.outcome),
        f"  {outcome.test.nodeid}: {'flaky' if outcome.flaky else result.outcome}{_place(outcome, run)}",
        *(f"  attempt {attempt.attempt}: {attempt.message}" for attempt in earlier),
        *describe_ranks(result, logs_in=f"{results_dir}/"),
        result.details,
        *describe_plugins(result),
        *command_lines(outcome.test, result, run),
    ]
    return "\n".join(part for part in parts if part)


def _place(outcome: TestOutcome, run: RunResult) -> str:
    from disttest.reports.location import Repository, locate

    place = locate(outcome, Repository.of(run)) if outcome.final.outcome.is_bad else None
    return f" at {place}" if place else ""
