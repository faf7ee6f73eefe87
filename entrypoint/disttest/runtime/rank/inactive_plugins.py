"""Plugins of others in a rank: it runs tests and nothing else, as its controller has settled for all ranks.

Whoever repeats, forks for, limits or reports a test by itself would do so in each rank alone, behind the back of the world.
"""

from __future__ import annotations

import pytest

_OF_THE_CONTROLLER = (
    "_cov",  # see disttest.runtime.rank.measured
    "_cov_contexts",
    "pytest_forked",  # a rank is a process already, and a copy of it is no rank
    "rerunfailures",  # would repeat one rank, which the others wait for in vain
    "timeout",  # the world keeps the limit, also of ranks that hang where no signal reaches Python
)
_NOTHING = {"allure_report_dir": None, "clean_alluredir": False, "htmlpath": None, "json_report": False}
"""Options of plugins that write files, as they are where nothing was asked."""


def stand_aside(config: pytest.Config) -> None:
    """Take those plugins from this rank that are the controller's alone."""
    _end_allure(config)
    for name in _OF_THE_CONTROLLER:
        if config.pluginmanager.hasplugin(name):
            config.pluginmanager.unregister(name=name)


def _end_allure(config: pytest.Config) -> None:
    """The controller makes one result of what the ranks come to: steps and attachments of theirs go nowhere."""
    listener = config.pluginmanager.getplugin("allure_listener")
    if listener is not None:
        import allure_commons  # type: ignore[import-not-found,unused-ignore]  # it is there with its plugin

        config.pluginmanager.unregister(listener)
        allure_commons.plugin_manager.unregister(listener)


def write_nothing(config: pytest.Config) -> None:
    """In a process that collects for ranks, before plugins look at their options: their files are the controller's."""
    for name, value in _NOTHING.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
