"""Hooks of resident parents and of ``disttest watch``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl
from disttest.host.imports import loaded
from disttest.options.option import rows_of
from disttest.options.values import MODULES, SWITCH

if TYPE_CHECKING:
    import click

    from disttest.cli.run_request import RunRequest
    from disttest.host.event_loop import NotedSignals
    from disttest.host.process import Child
    from disttest.options.option import Option
    from disttest.runtime.supervisor.run_supervisor import PytestStart

_run = rows_of("run")

RESIDENT = _run(
    "resident",
    SWITCH,
    "Fork the run from a resident process that has already imported torch.",
    default=False,
    has_variable=True,
    inputs=(),
    for_command=True,
    common=True,
)

RESIDENT_IMPORTS = _run(
    "resident-imports",
    MODULES,
    "Installed modules that the process for --resident also imports once a run has imported them.",
    default=(),
    has_variable=True,
    inputs=(),
    for_command=True,
    no_flag=True,
)

OPTIONS = (RESIDENT, RESIDENT_IMPORTS)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Options ``--resident`` and ``--resident-imports``."""
    return OPTIONS


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest resident`` and ``disttest watch``."""
    from disttest.extras.resident.command import resident, watch

    group.add_command(resident)
    group.add_command(watch)


@hookimpl
def disttest_execute_run(request: RunRequest, signals: NotedSignals) -> int | None:
    """Let a fork of a resident parent run the request."""
    if not request.settings[RESIDENT.field]:
        return None
    from disttest.extras.resident.parents import run_by_fork, wants_resident

    return run_by_fork(request, signals=signals) if wants_resident(request) else None


@hookimpl
def disttest_start_pytest(start: PytestStart) -> Child | None:
    """Let the process that waits beside a fork of a resident parent be pytest."""
    # Imported already if this process is such a fork.
    standby = loaded("disttest.extras.resident.standby")
    waiting = standby.take_standby() if standby else None
    return waiting.start(start) if waiting else None
