"""Schedulers, one module each: the processes of this machine (``local``), and those of plugins."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, cast

from disttest.extras.cluster.protocol.launcher import Launcher, LauncherOptions, NodeVariables
from disttest.plugin_manager import plugin_manager

SCHEDULERS: Mapping[str, str] = plugin_manager().mapping("disttest_schedulers", str)
"""Name of a scheduler -> its module."""


class SchedulerModule(Protocol):
    """Interface of a scheduler's module."""

    NODE_VARIABLES: NodeVariables

    def make_launcher(self, environ: Mapping[str, str], options: LauncherOptions) -> Launcher:
        """Make the launcher, without a query."""


def scheduler_named(name: str) -> SchedulerModule:
    """Import the module of a scheduler, which is one of ``LAUNCHERS`` in the options."""
    # Imported by name: planning knows only the name of a scheduler, and must not import clusters.
    return cast("SchedulerModule", import_module(SCHEDULERS.get(name, f"{__name__}.{name}")))
