"""Commands ``disttest history add``, ``disttest history show`` and ``disttest trend``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from disttest.cli.purposes import Purpose, serves
from disttest.options.flags import ShowingCommand, flags


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
    from disttest.extras.history import command_run

    if action == "add":
        command_run.add([Path(word) for word in words], given)
    else:
        command_run.show(words, given)


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
