"""Hooks of the commands for shells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest completion`` and ``disttest man``."""
    from disttest.extras.shell.commands import completion, man

    group.add_command(completion)
    group.add_command(man)
