"""Resident parents: whether a run is to be a fork of one, and what becomes of those that are there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from disttest.host.signals import NotedSignals
from disttest.options.environment import environment
from disttest.options.flags import was_given
from disttest.options.project_file import ProjectSettings
from disttest.options.registry import RESIDENT
from disttest.reports.text import count, duration
from disttest.resident.terms import ForkTerms
from disttest.runtime.guard.standby import is_standing_by

if TYPE_CHECKING:
    from disttest.resident.endpoint import ParentEndpoint


def wants_resident(asked: bool, project: ProjectSettings, environ: Mapping[str, str]) -> bool:
    """Whether a run is to be a fork of a resident parent: as it was asked for, else as the project has it, but not in CI.

    Args:
        asked: what a flag or a variable says, if there is one.
        project: of the tests.
        environ: the environment.
    """
    if was_given(RESIDENT):
        return asked
    in_ci = environ.get("CI", "").lower() not in ("", "0", "false")
    return project.texts.get(RESIDENT.name) == "true" and not in_ci


def run_by_fork(
    terms: ForkTerms, needs_new: Mapping[str, Any], *, signals: NotedSignals, tell: Callable[[str], None]
) -> int | None:
    """Run this command in a fork of the resident parent; None where it has to run by itself.

    Args:
        terms: what its parent must be like.
        needs_new: what the run was asked for that only a new process can do, by its flag.
        signals: those that cancel it.
        tell: says a line to the user.
    """
    if is_standing_by():  # this is the fork
        return None
    if names := [name for name, value in needs_new.items() if value]:
        tell(f"{' and '.join(names)} needs new processes: this run goes without a resident parent")
        return None
    from disttest.resident.client import run_resident  # most runs want none

    return run_resident(sys.argv[1:], environment(), terms, signals=signals, tell=tell)


def describe_parents() -> list[str]:
    """A line for each resident parent of this user."""
    from disttest.resident.endpoint import endpoints

    return [line for endpoint in endpoints(environment()) if (line := _describe(endpoint))]


def end_parents() -> list[str]:
    """End them; a line for each."""
    from disttest.resident.client import stop
    from disttest.resident.endpoint import endpoints

    return [
        f"ended pid {pid}" for endpoint in endpoints(environment()) if (pid := stop(endpoint)) is not None
    ]


def _describe(endpoint: ParentEndpoint) -> str:
    import psutil

    from disttest.resident.client import ask_status

    process = endpoint.parent()
    if process is None:
        return ""
    told = ask_status(endpoint)
    if told is None:
        return f"pid {process.pid}: does not answer"
    memory = psutil.Process(process.pid).memory_info().rss >> 20
    kept = f"with {', '.join(told.imports)}, " if told.imports else ""
    return (
        f"pid {process.pid} for {told.folder}: {count(told.runs, 'run')} in {duration(told.age_s)}, {memory} MiB, {kept}"
        f"ends after {duration(told.idle_s)} without a run"
    )
