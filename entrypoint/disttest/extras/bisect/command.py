"""``disttest bisect``: the command, and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from disttest.cli.purposes import Purpose, serves
from disttest.errors import ExitCode, UsageError
from disttest.extras.bisect.hooks import USUAL
from disttest.options.flags import RegistryCommand, flags
from disttest.options.registry import RUN_OPTIONS
from disttest.options.run import resolve_options
from disttest.reports.text import count, one_line

if TYPE_CHECKING:
    from disttest.extras.bisect.search import Answer


@serves(Purpose.FAULTS)
@click.command(name="bisect", cls=RegistryCommand)
@click.argument("test")
@click.argument("good")
@click.argument("bad")
@flags("bisect")
@click.pass_obj
def bisect(pytest_args: Sequence[str], /, test: str, good: str, bad: str, **given: Any) -> int:
    """Find the first commit at which TEST fails, between the commits GOOD and BAD, also if it fails only now and then.

    Each commit is tested in a work tree of its own, as often as the failure rate demands. Exit code 0: found, 1: not decided.

    \b
    disttest bisect tests/test_step.py::test_sum v1.2 HEAD
    disttest bisect tests/test_step.py::test_sum v1.2 HEAD --prepare install.sh
    """
    return run_bisect(test, good, bad, pytest_args, given)


_OWN = ("results", "repeat", "retries", "deadline")
"""Options of a run that the search decides."""


def run_bisect(test: str, good: str, bad: str, pytest_args: Sequence[str], given: Mapping[str, Any]) -> int:
    """Search, print each step and the answer, and return the exit code.

    Raises:
        UsageError: a commit is wrong, an option makes no sense, or the test does not fail at BAD.
    """
    from disttest.extras.bisect.child_runs import cancel_in_order, environ_of_runs, forwarded, new_folder
    from disttest.extras.bisect.import_roots import import_roots
    from disttest.extras.bisect.search import search
    from disttest.extras.bisect.work_tree import TestRuns, commits_between, git, work_tree

    flags = {option.field: given.get(option.field) for option in RUN_OPTIONS}
    # Refuse wrong options here. Otherwise each run of the search would refuse them.
    resolve_options(flags)
    if refused := [f"--{name}" for name in ("repeat", "retries", "deadline") if flags[name]]:
        raise UsageError(
            f"leave {refused[0]} out: disttest bisect decides how often the test runs; --most is its limit"
        )
    here = Path.cwd()
    commits = commits_between(here, good, bad)
    # Absolute: the script runs in the work tree, and not where the user named it.
    prepare = given["prepare"].absolute() if given["prepare"] else None
    if prepare is not None and not prepare.is_file():
        raise UsageError(f"--prepare {given['prepare']} is not a file")
    # Outside of the work tree, which each check-out cleans.
    results = new_folder(Path(flags["results"]) if flags["results"] else USUAL)
    cancel_in_order()  # so that the work tree is removed
    click.echo(
        f"bisect: {count(len(commits), 'commit')}, {commits[0][:10]} to {commits[-1][:10]}; results in {results.name}"
    )
    repository, environ = Path(git(here, "rev-parse", "--show-toplevel")), environ_of_runs(flags)
    if prepare is None and (copies := import_roots(repository, here, environ).copies):
        click.echo(
            f"bisect: note: {', '.join(copies)} is installed as a copy: what tests import of it is the same at all commits; "
            "install it with -e, or give --prepare"
        )
    with work_tree(here, commits[-1]) as tree:
        runs = TestRuns(
            repository,
            tree,
            git(here, "rev-parse", "--show-prefix"),
            [test, *forwarded(flags, _OWN)],
            pytest_args,
            results,
            prepare,
            environ,
        )
        answer = search(
            len(commits),
            lambda commit, times, until_failure: runs.run(
                commits[commit], times, until_failure=until_failure
            ),
            lambda line: click.echo(f"bisect: {line}"),
            rate=given["rate"],
            confidence=given["confidence"],
            most=given["most"],
        )
    click.echo(
        "\n".join(
            describe(answer, [f"{each[:10]} {_subject(here, each)}" for each in _shown(answer, commits)])
        )
    )
    return ExitCode.PASSED if answer.is_decided else ExitCode.FAILED


def _shown(answer: Answer, commits: Sequence[str]) -> list[str]:
    return [commits[each] for each in answer.commits[:20]]


def _subject(folder: Path, commit: str) -> str:
    from disttest.extras.bisect.work_tree import git

    return one_line(git(folder, "log", "-1", "--format=%s", commit), 100)


def describe(answer: Answer, shown: Sequence[str]) -> list[str]:
    """The lines of the answer.

    Args:
        answer: of the search.
        shown: hash and subject of its commits, the first ones.
    """
    runs = count(answer.runs, "run")
    if answer.is_decided and answer.commits[0] == 0:
        return [f"GOOD is bad already: {shown[0]} ({100 * answer.probability:.0f} % sure, {runs})"]
    if answer.is_decided:
        return [f"first bad commit: {shown[0]} ({100 * answer.probability:.0f} % sure, {runs})"]
    more = [f"  … and {len(answer.commits) - len(shown)} more"] if len(answer.commits) > len(shown) else []
    title = (
        f"not decided after {runs}; the first bad commit is one of {count(len(answer.commits), 'commit')}:"
    )
    return [title, *(f"  {line}" for line in shown), *more]
