"""Hooks of ``disttest launch``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from disttest.extras.container.option_rows import OPTIONS
from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

    from disttest.options.option import Option


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Options of the command."""
    return OPTIONS


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest launch``."""
    from disttest.extras.container.command import launch

    group.add_command(launch)
