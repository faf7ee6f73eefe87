"""The hooks of ``disttest explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest explain``."""
    from disttest.extras.explain.command import explain

    group.add_command(explain)
