"""The commands ``disttest report`` and ``disttest trend``; the command line registers them."""

from __future__ import annotations

from pathlib import Path

import click

from disttest.errors import UsageError
from disttest.options.flags import RegistryCommand, ShowingCommand, flags
from disttest.options.values import one_of
from disttest.reports.write import rebuild, reporters
from disttest.results.directory import no_run_writes

ALL = "all"


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
    from disttest.reports.trend import load_run

    _check_is_folder(results_dir)
    formats = given["format"]
    wanted = tuple(reporters()) if not formats or ALL in formats else formats
    with no_run_writes(results_dir):
        written = rebuild(results_dir, wanted, history=[load_run(earlier) for earlier in history])
    for path in written:
        click.echo(f"wrote {path}")


@click.command(cls=ShowingCommand)
@click.argument("results_dirs", metavar="DIR…", nargs=-1, required=True, type=click.Path(path_type=Path))
def trend(results_dirs: tuple[Path, ...]) -> None:
    """Compare runs: duration, flake rate and infrastructure rate, oldest run first.

    Each DIR is a results directory, or a folder of them. `disttest report --history` draws the same.
    """
    from rich.console import Console

    from disttest.reports import trend as trends

    runs = [trends.load_run(folder) for given in results_dirs for folder in trends.find_runs(given)]
    trends.print_trend(Console(), trends.trend(runs))


def _check_is_folder(path: Path) -> None:
    if not path.is_dir():
        raise UsageError(f"no results directory {path}: give the one that the run wrote into")
