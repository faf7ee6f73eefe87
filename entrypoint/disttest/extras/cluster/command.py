"""Commands ``disttest node-agent`` and ``disttest cluster-clean``."""

from __future__ import annotations

import click

from disttest.cli.purposes import Purpose, serves
from disttest.errors import DisttestError, UsageError
from disttest.options.environment import environment
from disttest.options.flags import ChannelCommand, RegistryCommand, flags


@click.command(name="node-agent", hidden=True, cls=ChannelCommand)
def node_agent() -> None:
    """Run the agent of one node of a job (started by a scheduler, never by hand)."""
    from disttest.extras.cluster.node.agent import Agent, own_output
    from disttest.extras.cluster.node.assignment import find_assignment

    # First: text that another module prints into a line of the protocol would spoil it.
    own_output()
    Agent(find_assignment(environment())).run()


@serves(Purpose.MACHINES)
@click.command(name="cluster-clean", cls=RegistryCommand)
@flags("cluster-clean")
def cluster_clean(*, launcher: str, partition: str, **given: bool) -> None:
    """End the jobs that a killed run of this machine has left with a scheduler."""
    from disttest.extras.cluster.client.cluster_session import remove_leftovers
    from disttest.extras.cluster.place import scheduler_of

    scheduler, every = scheduler_of(launcher, partition), given["all"]
    try:
        names = scheduler.every_name() if every else ()
    except DisttestError as error:
        raise UsageError(str(error)) from error
    if every:
        scheduler.remove(names)
    else:
        names = remove_leftovers(scheduler)
    for name in names:
        click.echo(f"cancelled {name}")
