"""The hooks of ``disttest bisect``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from disttest.extras.bisect.option_rows import NAME, OPTIONS
from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

    from disttest.options.option import Option


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Add the options of the command."""
    return OPTIONS


@hookimpl
def disttest_commands_that_run() -> Sequence[str]:
    """Name its own command."""
    return (NAME,)


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest bisect``."""
    from disttest.extras.bisect.command import bisect

    group.add_command(bisect)
