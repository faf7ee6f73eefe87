"""Hooks of resident parents and of ``disttest watch``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from disttest.extras.resident.option_rows import OPTIONS, RESIDENT
from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

    from disttest.cli.run_request import RunRequest
    from disttest.host.event_loop import NotedSignals
    from disttest.options.option import Option


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Options ``--resident`` and ``--resident-imports``."""
    return OPTIONS


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest resident`` and ``disttest watch``."""
    from disttest.extras.resident.command import resident
    from disttest.extras.resident.watch import watch

    group.add_command(resident)
    group.add_command(watch)


@hookimpl
def disttest_execute_run(request: RunRequest, signals: NotedSignals) -> int | None:
    """Let a fork of a resident parent run the request."""
    if not request.settings[RESIDENT.field]:
        return None
    from disttest.extras.resident.parents import run_by_fork, wants_resident

    return run_by_fork(request, signals=signals) if wants_resident(request) else None
