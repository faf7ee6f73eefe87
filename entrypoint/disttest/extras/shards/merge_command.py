"""Command ``disttest merge``: make one set of reports from the results of many shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import disttest
from disttest.cli.purposes import Purpose, serves
from disttest.cli.words import warn, warn_by_plugins
from disttest.errors import UsageError
from disttest.extras.shards.shard_plan import Plan, decode_plan
from disttest.extras.shards.shard_sources import find_plan
from disttest.options.environment import environment
from disttest.options.flags import RegistryCommand, flags
from disttest.results.conclusion import Demands
from disttest.results.directory import claim
from disttest.results.fold import RunResult
from disttest.safe_open import read_input


def merge_command() -> click.Command:
    """Make the command."""

    @serves(Purpose.DIVIDE)
    @click.command(name="merge", cls=RegistryCommand)
    @click.argument("directories", nargs=-1, required=True, type=Path, metavar="DIR…")
    @flags("merge")
    def merge_(directories: tuple[Path, ...], plan: Path | None, **given: Any) -> None:
        """Join the results of shards (below the directories) into one."""
        from disttest.cli.finish import conclude_command, missed_demands, write_and_show
        from disttest.extras.shards.merging import merge

        _check_results(given["results"], directories)
        into = claim(given["results"]).path
        run = merge(
            directories,
            into,
            plan=read_plan(plan or find_plan(directories)),
            expected_shards=given["shards"],
            reruns=given["reruns"],
            disttest=disttest.__version__,
        )
        environ = environment()
        # Before the reports, which show missed floors. Lost reports are known only after them.
        missed = missed_demands(run, given)
        run = conclude_command(run, missed, into)
        lost = write_and_show(run, into, environ)
        for message in (*missed.lost, *lost, *missed.broken, *missed.idle):
            warn(message)
        click.echo(f"disttest: {render_merged(run)}; reports in {given['results']}")
        code = conclude_command(run, Demands(lost=lost), into).exit_code
        results = into.absolute()
        # Last, with the final code: otherwise a step that missed a floor has the output conclusion=success.
        warn_by_plugins("disttest_run_finished", run=run, results=results, exit_code=code, environ=environ)
        click.get_current_context().exit(code)

    return merge_


def _check_results(results: Path, directories: Sequence[Path]) -> None:
    """Refuse a results directory with shards in it: claiming it would move them away.

    Raises:
        UsageError: a directory of shards is the results directory, or below it.
    """
    for directory in directories:
        if directory.resolve().is_relative_to(results.resolve()):
            raise UsageError(
                f"--results {results} has the shards of {directory} in it, which are to be read: name another directory"
            )


def read_plan(path: Path | None) -> Plan | None:
    """Read the plan from a file; None without a file.

    Raises:
        UsageError: the file cannot be read or is not a plan.
    """
    try:
        return decode_plan(read_input(path), str(path)) if path else None
    except OSError as error:
        raise UsageError(f"the plan cannot be read from {path}: {error}") from error


def render_merged(run: RunResult) -> str:
    """Render one line: the number of shards, and of tests by outcome. A rerun of a shard is the same shard."""
    from disttest.reports.text import count

    counts = ", ".join(f"{number} {outcome}" for outcome, number in run.counts().items() if number)
    shards = {span.directory if span.shard is None else span.shard for span in run.shards}
    return f"{count(len(shards), 'shard')}, {counts or 'no tests'}"
