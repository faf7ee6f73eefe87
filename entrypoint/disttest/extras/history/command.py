"""Commands ``disttest history add``, ``disttest history show`` and ``disttest trend``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from disttest.cli.purposes import Purpose, serves
from disttest.cli.words import warn
from disttest.errors import UsageError
from disttest.extras.history.hooks import FILE, USUAL
from disttest.options.environment import environment
from disttest.options.flags import ShowingCommand, flags
from disttest.options.project_file import chosen_path
from disttest.reports.text import count


@serves(Purpose.RESULTS)
@click.command(name="history", cls=ShowingCommand)
@click.argument("action", type=click.Choice(["add", "show"]))
@click.argument("words", nargs=-1, metavar="[RESULTS… | TEST]")
@flags("history")
def history(action: str, words: tuple[str, ...], **given: Any) -> None:
    """Keep the outcomes of all runs in one file, and show the past of tests.

    \b
    disttest history add results                    this run
    disttest history add artifacts/ other.sqlite    all runs in a folder, and another history
    disttest history add junit.xml --commit 1a2b3c  the report of another tool
    disttest history show                           the tests that failed in the last 30 runs
    disttest history show test_sum                  tests with this in their names
    """
    if action == "add":
        _add([Path(word) for word in words], given)
    else:
        _show(words, given)


@serves(Purpose.RESULTS)
@click.command(cls=ShowingCommand)
@click.argument("paths", metavar="RESULTS…", nargs=-1, required=True, type=click.Path(path_type=Path))
@flags("trend")
def trend(paths: tuple[Path, ...]) -> None:
    """Compare runs: duration, flake rate and infrastructure rate, oldest run first.

    Each of RESULTS is a results directory, a folder of them, or a history file. `disttest report --history` draws the same.
    """
    from rich.console import Console

    from disttest.extras.history.shown import points_of, print_trend

    print_trend(Console(), points_of(paths))


def _history_file(given: Mapping[str, Any]) -> Path:
    """Return the file that a flag, the variable or the project names; otherwise the default."""
    return chosen_path(FILE, given[FILE.field]) or USUAL


def _add(paths: Sequence[Path], given: Mapping[str, Any]) -> None:
    """Add runs, and print how many.

    Raises:
        UsageError: nothing is given, or it cannot be added.
    """
    from disttest.clock import wall
    from disttest.extras.history.adding import add_results
    from disttest.extras.history.git_facts import CommitFacts, facts_of_ci, project_of

    if not paths:
        raise UsageError("nothing to add; name results directories, as in: disttest history add results")
    ci = facts_of_ci(environment()) or CommitFacts()
    facts = CommitFacts(
        commit=given["commit"] or ci.commit,
        branch=given["branch"] or ci.branch,
        project=project_of(given["project"]),
    )
    file = _history_file(given)
    added = add_results(file, paths, facts, now_s=wall())
    for warning in added.warnings:
        warn(f"warning: {warning}")
    known = f"; {count(added.known, 'run')} known already" if added.known else ""
    click.echo(
        f"disttest: {count(added.runs, 'run')} with {count(added.verdicts, 'verdict')} added to {file}{known}"
    )


def _show(words: Sequence[str], given: Mapping[str, Any]) -> None:
    """Print the past of tests.

    Raises:
        UsageError: there is no history, or no test in it has this in its name.
    """
    from disttest.extras.history.queries import find_tests
    from disttest.extras.history.shown import MOST_TESTS, show_all, show_test
    from disttest.extras.history.store import reading

    if len(words) > 1:
        raise UsageError(f"give a part of one test's name: these are {len(words)} words")
    shown = {"branch": given["branch"], "last": given["last"]}
    file = _history_file(given)
    with reading(file) as connection:
        if not words:
            click.echo("\n".join(show_all(connection, **shown)))
            return
        names = find_tests(connection, words[0])
        if not names:
            raise UsageError(
                f"no test in {file} has {words[0]!r} in its name; `disttest history show` lists tests"
            )
        for name in names[:MOST_TESTS]:
            click.echo("\n".join(show_test(connection, name, **shown)))
        if len(names) > MOST_TESTS:
            click.echo(
                f"… and {count(len(names) - MOST_TESTS, 'more test')} with {words[0]!r} in their names"
            )
