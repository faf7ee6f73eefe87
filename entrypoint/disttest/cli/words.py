"""Messages of the command besides its output."""

from __future__ import annotations

import click


def warn(message: str) -> None:
    """Print a line on standard error."""
    click.echo(f"disttest: {message}", err=True)
