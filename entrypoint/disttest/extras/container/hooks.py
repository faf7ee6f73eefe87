"""Hooks of ``disttest launch``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
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


@hookimpl
def disttest_reports_written(results: Path) -> None:
    """Hand the results over if this is root in the image."""
    from disttest.options.environment import environment

    if environment().get("DISTTEST_IMAGE") and os.geteuid() == 0:
        from disttest.extras.container.inside_image import give_to_workspace_owner

        give_to_workspace_owner(results)
