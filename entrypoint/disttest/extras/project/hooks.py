"""Hooks of the commands that set up a project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest init``, ``disttest adopt`` and ``disttest config``."""
    from disttest.extras.project.adopt import adopt
    from disttest.extras.project.config import config
    from disttest.extras.project.init import init

    for command in (init, adopt, config):
        group.add_command(command)
