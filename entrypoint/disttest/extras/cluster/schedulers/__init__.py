"""Schedulers, a module for each: the processes of this machine (``local``), and those that plugins add."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, cast

from disttest.extras.cluster.protocol.launcher import Launcher, LauncherOptions, NodeVariables
from disttest.plugin_manager import plugin_manager

SCHEDULERS: Mapping[str, str] = plugin_manager().mapping("disttest_schedulers", str)
"""Name -> module."""


class SchedulerModule(Protocol):
    """What the module of a scheduler has."""

    NODE_VARIABLES: NodeVariables

    def make_launcher(self, environ: Mapping[str, str], options: LauncherOptions) -> Launcher:
        """The door to it; asks nobody yet."""


def scheduler_named(name: str) -> SchedulerModule:
    """The module of a scheduler: one of ``LAUNCHERS`` in the options."""
    return cast("SchedulerModule", import_module(SCHEDULERS.get(name, f"{__name__}.{name}")))
