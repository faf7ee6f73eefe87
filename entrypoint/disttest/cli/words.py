"""What the command says beside what it was asked for."""

from __future__ import annotations

import click


def warn(message: str) -> None:
    """A line on standard error."""
    click.echo(f"disttest: {message}", err=True)
