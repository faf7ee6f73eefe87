"""Hooks of the watch over shared memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    from disttest.plugins.leftovers.segments import Segments
    from disttest.plugins.leftovers.sweep import Sweep


@hookimpl
def disttest_load_parts() -> None:
    """Import the part of worlds."""
    from disttest.plugins.leftovers import segments  # noqa: F401


@hookimpl
def disttest_watch_run(results: Callable[[], Path]) -> Sweep:
    """Note the files that exist before the run."""
    from disttest.plugins.leftovers.sweep import Sweep

    return Sweep(results)


@hookimpl
def disttest_watch_world(results: Callable[[], Path]) -> Segments:
    """Watch the files that processes of a world make."""
    from disttest.plugins.leftovers.segments import Segments

    return Segments(results)
