"""Command ``disttest watch``: run the tests that a saved file affects, and keep the last verdict on the screen."""

from __future__ import annotations

from collections.abc import Sequence

import click

from disttest.cli.purposes import Purpose, serves


@serves(Purpose.RUN)
@click.command(name="watch")
@click.argument("targets", nargs=-1, required=True, metavar="PATH…")
@click.pass_obj
def watch(pytest_args: Sequence[str], /, targets: tuple[str, ...]) -> None:
    """Run tests when a file that they import is saved, failed ones first, from a resident parent.

    \b
    enter  run all                         f  run the failed tests
    r      show the log of a failed rank   q  quit

    Options come from [tool.disttest] and the environment; arguments after -- are for pytest.
    """
    from disttest.cli.main import main
    from disttest.extras.resident.watch_screen import watch as show

    show(targets, pytest_args, main)
