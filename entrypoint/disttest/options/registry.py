"""The registry: one row for each option of each command, in the order in which help and docs have them."""

from __future__ import annotations

from typing import Any

from disttest.options.command_rows import (
    CHAOS_OPTIONS,
    COMMAND_SETTINGS,
    DOCTOR_OPTIONS,
    IN_CONTAINER,
    KEEP_RESULTS,
    LAUNCH_OPTIONS,
    MERGE_OPTIONS,
    OTHER_OPTIONS,
    PLAN_OPTIONS,
    RESIDENT,
    RESIDENT_IMPORTS,
)
from disttest.options.option import Option
from disttest.options.run_rows import (
    CLUSTER_OPTIONS,
    FLOOR_OPTIONS,
    LAUNCHERS,
    RUN_OPTIONS,
    SELECTION_OPTIONS,
)

__all__ = [
    "CLUSTER_OPTIONS",
    "FLOOR_OPTIONS",
    "IN_CONTAINER",
    "KEEP_RESULTS",
    "LAUNCHERS",
    "LAUNCH_OPTIONS",
    "MERGE_OPTIONS",
    "OPTIONS",
    "PLAN_OPTIONS",
    "PLUGIN_SWITCHES",
    "PROJECT_OPTIONS",
    "RESIDENT",
    "RESIDENT_IMPORTS",
    "RUN_OPTIONS",
    "SELECTION_OPTIONS",
    "default_of",
    "groups_of",
    "options_of",
]

PROJECT_OPTIONS = (*RUN_OPTIONS, *COMMAND_SETTINGS)
"""What a project's file may say of a run."""

OPTIONS = (
    *OTHER_OPTIONS,
    *SELECTION_OPTIONS,
    *PLAN_OPTIONS,
    *MERGE_OPTIONS,
    *DOCTOR_OPTIONS,
    *LAUNCH_OPTIONS,
    *CHAOS_OPTIONS,
    *RUN_OPTIONS,
    *CLUSTER_OPTIONS,
)


PLUGIN_SWITCHES = frozenset(f"--disttest-{option.name}" for option in RUN_OPTIONS if option.is_switch)
"""Options of the plugin that may stand alone, for ``true``."""


def options_of(command: str) -> tuple[Option, ...]:
    """The options of a command, in order."""
    return tuple(option for option in OPTIONS if command in option.commands)


_COMMON = (
    *("world-sizes", "backend", "device", "gpus", "timeout", "deadline", "results", "isolation", "retries"),
    *("contain", "progress", "resident"),
)
"""What most users of ``disttest run`` ever give."""


def groups_of(command: str) -> tuple[tuple[str, tuple[Option, ...]], ...]:
    """The options of a command by the titles of its help; a command with few of them has one group."""
    options = options_of(command)
    if command != "run":
        return (("Options", options),)
    common = tuple(option for name in _COMMON for option in options if option.name == name)
    return (
        ("Common options", common),
        ("Further options of a run", tuple(row for row in PROJECT_OPTIONS if row not in common)),
        ("Plans, timings and floors", SELECTION_OPTIONS),
        ("Clusters", CLUSTER_OPTIONS),
    )


def default_of(name: str) -> Any:
    """The default of an option of a run, here or on a cluster."""
    return next(option.default for option in (*RUN_OPTIONS, *CLUSTER_OPTIONS) if option.name == name)
