"""Command ``disttest resident``: manage the resident parents of this user."""

from __future__ import annotations

import click

from disttest.cli.purposes import Purpose, serves
from disttest.options.flags import ShowingCommand


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
