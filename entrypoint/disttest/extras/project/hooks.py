"""Hooks of the commands that set up a project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest init`` and ``disttest config``."""
    from disttest.extras.project.config import config
    from disttest.extras.project.init import init

    group.add_command(config)
    group.add_command(init)
