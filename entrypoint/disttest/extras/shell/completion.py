"""Command ``disttest completion``: code with which a shell completes the command line."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from disttest.cli.purposes import Purpose, serves
from disttest.options.flags import ShowingCommand

VARIABLE = "_DISTTEST_COMPLETE"
"""Set by the shell's code, which asks the command for completions."""
SHELLS = ("bash", "zsh", "fish")


@serves(Purpose.SETUP)
@click.command(cls=ShowingCommand)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion for a shell, as in: eval "$(disttest completion bash)"."""
    made_by = get_completion_class(shell)
    assert made_by is not None
    click.echo(made_by(context.find_root().command, {}, "disttest", VARIABLE).source())
