"""The hooks of ``disttest explain``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

    from disttest.options.option import Option


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Add the options of a packet."""
    from disttest.extras.explain.option_rows import OPTIONS

    return OPTIONS


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest explain``."""
    from disttest.extras.explain.command import explain

    group.add_command(explain)
