"""Hooks of results for allure-pytest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from disttest.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest

_LISTENER = "allure_listener"


@hookimpl
def disttest_worlds_begin(items: Sequence[pytest.Item], config: pytest.Config) -> Sequence[str]:
    """Have allure write a result for each of these tests, if allure-pytest is active."""
    listener = config.pluginmanager.getplugin(_LISTENER)
    if listener is not None:
        from disttest.plugins.allure.results import OneResultEach

        config.pluginmanager.register(OneResultEach(listener, {item.nodeid: item for item in items}))
    return ()


@hookimpl
def disttest_process_configure(config: pytest.Config) -> None:
    """Disable allure in this process: the controller writes one result for all ranks."""
    # Steps and attachments of ranks are lost.
    listener = config.pluginmanager.getplugin(_LISTENER)
    if listener is not None:
        # installed together with its plugin
        import allure_commons  # type: ignore[import-not-found,unused-ignore]

        config.pluginmanager.unregister(listener)
        allure_commons.plugin_manager.unregister(listener)
