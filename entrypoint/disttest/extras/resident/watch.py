"""``disttest watch``: runs what a saved file touches, and keeps the last verdict on the screen."""

from __future__ import annotations

from collections.abc import Sequence

import click


@click.command(name="watch")
@click.argument("targets", nargs=-1, required=True, metavar="PATH…")
@click.pass_obj
def watch(pytest_args: Sequence[str], /, targets: tuple[str, ...]) -> None:
    """Run tests when a file that they import is saved, those first that failed, from a resident parent.

    \b
    enter  run all                         f  run what failed
    r      show the log of a failed rank   q  quit

    Options are those of [tool.disttest] and of the environment; what follows -- is for pytest.
    """
    from disttest.cli.main import main
    from disttest.extras.resident.watch_screen import watch as show

    show(targets, pytest_args, main)
