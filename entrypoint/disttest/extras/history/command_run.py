"""Actions of ``disttest history``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from disttest.cli.words import warn
from disttest.clock import wall
from disttest.errors import UsageError
from disttest.extras.history.adding import add_results
from disttest.extras.history.git_facts import CommitFacts, facts_of_ci, project_of
from disttest.extras.history.option_rows import FILE, USUAL
from disttest.extras.history.queries import find_tests
from disttest.extras.history.shown import MOST_TESTS, show_all, show_test
from disttest.extras.history.store import reading
from disttest.options.environment import environment
from disttest.options.project_file import chosen_path
from disttest.reports.text import count


def history_file(given: Mapping[str, Any]) -> Path:
    """Return the file that a flag, the variable or the project names; otherwise the default."""
    return chosen_path(FILE, given[FILE.field]) or USUAL


def add(paths: Sequence[Path], given: Mapping[str, Any]) -> None:
    """Add runs, and print how many.

    Raises:
        UsageError: nothing is given, or it cannot be added.
    """
    if not paths:
        raise UsageError("nothing to add; name results directories, as in: disttest history add results")
    ci = facts_of_ci(environment()) or CommitFacts()
    facts = CommitFacts(
        commit=given["commit"] or ci.commit,
        branch=given["branch"] or ci.branch,
        project=project_of(given["project"]),
    )
    file = history_file(given)
    added = add_results(file, paths, facts, now_s=wall())
    for warning in added.warnings:
        warn(f"warning: {warning}")
    known = f"; {count(added.known, 'run')} known already" if added.known else ""
    click.echo(
        f"disttest: {count(added.runs, 'run')} with {count(added.verdicts, 'verdict')} added to {file}{known}"
    )


def show(words: Sequence[str], given: Mapping[str, Any]) -> None:
    """Print the past of tests.

    Raises:
        UsageError: there is no history, or no test in it has this in its name.
    """
    if len(words) > 1:
        raise UsageError(f"give a part of one test's name: these are {len(words)} words")
    shown = {"branch": given["branch"], "last": given["last"]}
    file = history_file(given)
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
