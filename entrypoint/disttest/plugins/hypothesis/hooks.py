"""Hooks of common examples of hypothesis in all ranks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl, of_pytest
from disttest.model import WorldKind

if TYPE_CHECKING:
    import pytest

    from disttest.runtime.rank.rank_spec import RankSpec

_PLUGIN = "hypothesispytest"


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the part of ranks."""
    if config.pluginmanager.hasplugin(_PLUGIN):
        from disttest.plugins.hypothesis import examples  # noqa: F401


@hookimpl
def disttest_process_configure(spec: RankSpec, config: pytest.Config) -> None:
    """Draw the same examples as the other ranks of this world."""
    if spec.kind is not WorldKind.PROCESS and config.pluginmanager.hasplugin(_PLUGIN):
        from disttest.plugins.hypothesis.examples import draw_alike

        draw_alike(config, spec, together=spec.kind is WorldKind.RANKS and not spec.settings.ranks_collect)


@of_pytest(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep its plugin from importing all of hypothesis (0.1 s) for the summary of a run in which no test uses it."""
    config = session.config
    plugin = config.pluginmanager.getplugin(_PLUGIN)
    reporter = config.pluginmanager.getplugin("terminalreporter")
    is_unused = plugin is not None and reporter is not None and "hypothesis" not in sys.modules
    if not is_unused:
        return
    from disttest.runtime.controller.orders import order_of

    if not order_of(config).is_supervised:
        return
    reports = (report for reports in reporter.stats.values() for report in reports)
    noted = (name for report in reports for name in getattr(report, "__dict__", ()))
    summary = config.hook.pytest_terminal_summary
    sums_up = any(implementation.plugin is plugin for implementation in summary.get_hookimpls())
    if sums_up and not any(name.startswith("_hypothesis") for name in noted):
        # pluggy 1.7 can only remove a plugin from all hooks.
        summary._remove_plugin(plugin)  # noqa: SLF001
