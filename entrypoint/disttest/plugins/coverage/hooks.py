"""Hooks of coverage measurement in ranks, active if this process is measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest

    from disttest.plugins.coverage.measured import CoverageOrder
    from disttest.runtime.rank.rank_spec import RankSpec

_OF_PYTEST_COV = ("_cov", "_cov_contexts")
"""Plugins of pytest-cov that would measure a rank themselves."""


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the part of ranks."""
    del config
    if "coverage" in sys.modules:
        from disttest.plugins.coverage import measured  # noqa: F401


@hookimpl
def disttest_collecting_arguments(config: pytest.Config) -> Sequence[str]:
    """Disable pytest-cov in other collecting processes: it would erase the data of this process at its start."""
    return ("--no-cov",) if config.pluginmanager.hasplugin("pytest_cov") else ()


@hookimpl
def disttest_settle(config: pytest.Config) -> CoverageOrder | None:
    """Return the configuration of this process."""
    if "coverage" not in sys.modules:
        return None
    from disttest.plugins.coverage.measured import coverage_of_controller

    return coverage_of_controller(config)


@hookimpl
def disttest_process_configure(spec: RankSpec, config: pytest.Config) -> None:
    """Measure this process."""
    for name in _OF_PYTEST_COV:
        if config.pluginmanager.hasplugin(name):
            config.pluginmanager.unregister(name=name)
    if (order := spec.settled.get("coverage")) is not None:
        from disttest.plugins.coverage.measured import CoverageOrder, begin_coverage

        begin_coverage(msgspec.convert(order, CoverageOrder), config, spec.scratch.parent)


@hookimpl
def disttest_process_saves() -> None:
    """Write the data of this process."""
    if "coverage" in sys.modules:
        from disttest.plugins.coverage.measured import save_coverage

        save_coverage()


@hookimpl
def disttest_world_ended(scratch: Path) -> None:
    """Add the data of the world's processes to those of this process."""
    if "coverage" in sys.modules:
        from disttest.plugins.coverage.measured import merge_coverage

        merge_coverage(scratch)
