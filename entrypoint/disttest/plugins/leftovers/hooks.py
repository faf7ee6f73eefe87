"""Hooks of the watch over shared memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    from disttest.runtime.controller.run_watch import RunWatch
    from disttest.runtime.world.world_watch import WorldWatch


@hookimpl
def disttest_load_parts() -> None:
    """Import the part of worlds."""
    from disttest.plugins.leftovers import segments  # noqa: F401


@hookimpl
def disttest_watch_run(results: Callable[[], Path]) -> RunWatch:
    """Note the files that exist before the run."""
    from disttest.plugins.leftovers.sweep import Sweep
    from disttest.runtime.controller.run_watch import RunWatch

    class SharedMemoryOfRun(Sweep, RunWatch):
        pass

    return SharedMemoryOfRun(results)


@hookimpl
def disttest_watch_world(results: Callable[[], Path]) -> WorldWatch:
    """Watch the files that processes of a world make."""
    from disttest.plugins.leftovers.segments import Segments
    from disttest.runtime.world.world_watch import WorldWatch

    class SharedMemoryOfWorld(Segments, WorldWatch):
        pass

    return SharedMemoryOfWorld(results)
