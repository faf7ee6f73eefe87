"""Messages of the command besides its output."""

from __future__ import annotations

from typing import Any

import click

from disttest.outgoing import outgoing
from disttest.plugin_manager import plugin_manager


def warn(message: str) -> None:
    """Print a line on standard error."""
    click.echo(f"disttest: {outgoing.text(message)}", err=True)


def warn_by_plugins(hook: str, **arguments: Any) -> None:
    """Call a hook that returns messages, and print them."""
    for _, message in plugin_manager().items(hook, str, **arguments):
        warn(message)
