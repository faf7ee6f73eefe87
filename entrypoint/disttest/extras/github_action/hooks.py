"""Hooks of the GitHub actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add the hidden command of the actions' steps."""
    from disttest.extras.github_action.step import github_step

    group.add_command(github_step)
