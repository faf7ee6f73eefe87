"""Decide whether a run is a fork of a resident parent, and list and end the existing parents."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from disttest.cli.words import warn
from disttest.extras.resident.hooks import RESIDENT, RESIDENT_IMPORTS
from disttest.extras.resident.messages import ForkTerms
from disttest.extras.resident.standby import is_standing_by
from disttest.host.event_loop import NotedSignals
from disttest.options.environment import environment
from disttest.reports.text import count, duration

if TYPE_CHECKING:
    from disttest.cli.run_request import RunRequest
    from disttest.extras.resident.endpoint import ParentEndpoint


def wants_resident(request: RunRequest) -> bool:
    """Whether a run is a fork of a resident parent: as a flag or variable says, or the project outside of CI."""
    asked: bool = request.settings[RESIDENT.field]
    # A project's setting is for the edit loop. A CI job would start a parent for a single run.
    in_ci = environment().get("CI", "").lower() not in ("", "0", "false")
    return asked and (RESIDENT in request.given_settings or not in_ci)


def terms_of(request: RunRequest) -> ForkTerms:
    """Return the requirements that the parent of a run must meet."""
    return ForkTerms(seed=request.options.seed, imports=request.settings[RESIDENT_IMPORTS.field])


def run_by_fork(request: RunRequest, *, signals: NotedSignals) -> int | None:
    """Run this command in a fork of the resident parent; None if this process has to run it.

    Args:
        request: the run.
        signals: signals that cancel it.
    """
    if is_standing_by():  # this is the fork
        return None
    if names := request.needs_new_processes:
        warn(f"{' and '.join(names)} needs new processes; running without a resident parent")
        return None
    from disttest.extras.resident.client import run_resident  # imported late: most runs want no parent

    return run_resident(sys.argv[1:], environment(), terms_of(request), signals=signals, tell=warn)


def describe_parents() -> list[str]:
    """Return a line for each resident parent of this user."""
    from disttest.extras.resident.endpoint import endpoints

    return [line for endpoint in endpoints(environment()) if (line := _describe(endpoint))]


def end_parents() -> list[str]:
    """End all parents of this user; return a line for each."""
    from disttest.extras.resident.client import stop
    from disttest.extras.resident.endpoint import endpoints

    return [
        f"ended pid {pid}" for endpoint in endpoints(environment()) if (pid := stop(endpoint)) is not None
    ]


def _describe(endpoint: ParentEndpoint) -> str:
    import psutil

    from disttest.extras.resident.client import ask_status

    process = endpoint.parent()
    if process is None:
        return ""
    status = ask_status(endpoint)
    if status is None:
        return f"pid {process.pid}: does not answer"
    memory = psutil.Process(process.pid).memory_info().rss >> 20
    kept = f"with {', '.join(status.imports)}, " if status.imports else ""
    return (
        f"pid {process.pid} for {status.folder}: {count(status.runs, 'run')} in {duration(status.age_s)}, {memory} MiB, {kept}"
        f"ends after {duration(status.idle_s)} without a run"
    )
