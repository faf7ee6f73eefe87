"""Command ``disttest trend``: durations of runs, and rates of flaky tests and broken machines."""

from __future__ import annotations

from pathlib import Path

import click

from disttest.cli.purposes import Purpose, serves
from disttest.options.flags import ShowingCommand, flags


@serves(Purpose.RESULTS)
@click.command(cls=ShowingCommand)
@click.argument("paths", metavar="RESULTS…", nargs=-1, required=True, type=click.Path(path_type=Path))
@flags("trend")
def trend(paths: tuple[Path, ...]) -> None:
    """Compare runs: duration, flake rate and infrastructure rate, oldest run first.

    Each of RESULTS is a results directory, a folder of them, or a history file. `disttest report --history` draws the same.
    """
    from rich.console import Console

    from disttest.extras.history.trend_lines import points_of, print_trend

    print_trend(Console(), points_of(paths))
