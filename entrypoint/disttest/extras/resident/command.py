"""Commands ``disttest watch`` and ``disttest resident``."""

from __future__ import annotations

from collections.abc import Sequence

import click

from disttest.cli.purposes import Purpose, serves
from disttest.options.flags import ShowingCommand


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


@serves(Purpose.MACHINES)
@click.command(cls=ShowingCommand)
@click.argument("what", type=click.Choice(["status", "stop"]))
def resident(what: str) -> None:
    """Show the resident parents of this user, or end them and remove their files; runs that have begun continue.

    A resident parent has imported torch, pytest and the plugin, but no tests. The runs of disttest run --resident and
    disttest watch in one folder are forks of it.
    """
    from disttest.extras.resident.parents import describe_parents, end_parents

    lines = describe_parents() if what == "status" else end_parents()
    click.echo("\n".join(lines) or "no resident parent")
