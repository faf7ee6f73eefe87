"""``disttest watch``: runs what a saved file touches, and keeps the last verdict on the screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import click


def watch_command(run: Callable[[Sequence[str]], NoReturn]) -> click.Command:
    """The command.

    Args:
        run: be the command with these arguments.
    """

    @click.command(name="watch")
    @click.argument("targets", nargs=-1, required=True, metavar="PATH…")
    @click.pass_obj
    def watch_(pytest_args: Sequence[str], /, targets: tuple[str, ...]) -> None:
        """Run tests when a file that they import is saved, those first that failed, from a resident parent.

        \b
        enter  run all                         f  run what failed
        r      show the log of a failed rank   q  quit

        Options are those of [tool.disttest] and of the environment; what follows -- is for pytest.
        """
        from disttest.cli.watch_screen import watch

        watch(targets, pytest_args, run)

    return watch_
