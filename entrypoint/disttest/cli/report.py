"""The command ``disttest report``, which the command line registers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from disttest.cli.purposes import Purpose, serves
from disttest.errors import UsageError
from disttest.options.flags import RegistryCommand, flags
from disttest.options.values import one_of
from disttest.plugin_manager import plugin_manager
from disttest.reports.past_runs import PastRun
from disttest.reports.write import rebuild, reporters
from disttest.results.directory import no_run_writes

ALL = "all"


@serves(Purpose.RESULTS)
@click.command(cls=RegistryCommand)
@click.argument("results_dir", metavar="[DIR]", default="results", type=click.Path(path_type=Path))
@flags("report", format=one_of(ALL, *reporters()))
def report(results_dir: Path, history: tuple[Path, ...], **given: tuple[str, ...]) -> None:
    """Write the reports of a run again, from its journal in DIR (default: results).

    \b
    disttest report                               all reports of the last run
    disttest report old --format junit            only old/junit.xml
    disttest report --format html --history old   report.html with the trend since that run
    """
    _check_is_folder(results_dir)
    formats = given["format"]
    wanted = tuple(reporters()) if not formats or ALL in formats else formats
    with no_run_writes(results_dir):
        written = rebuild(results_dir, wanted, history=_past_runs(history))
    for path in written:
        click.echo(f"wrote {path}")


def _past_runs(paths: Sequence[Path]) -> list[PastRun] | None:
    """Read the runs of these files and directories; None without any."""
    found: list[PastRun] = []
    for path in paths:
        runs = plugin_manager().call("disttest_read_past_runs", path=path)
        if runs is None:
            raise UsageError(
                f"{path} has no earlier run that can be read; give the results directory of a run"
            )
        found += runs
    return found if paths else None


def _check_is_folder(path: Path) -> None:
    if not path.is_dir():
        raise UsageError(f"no results directory {path}: give the one that the run wrote into")
