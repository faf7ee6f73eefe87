"""Hooks of a suite's conftest files in SPMD mode: they run in each rank, and not in the controller."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from disttest.runtime.rank.bridge import OF_REPORTS, remove_hooks

_FINISH = "pytest_sessionfinish"


def is_conftest(plugin: object) -> bool:
    """Return whether a plugin is the module of a conftest file."""
    return isinstance(plugin, types.ModuleType) and Path(plugin.__file__ or "").name == "conftest.py"


def leave_hooks_to_ranks(config: pytest.Config) -> None:
    """Keep the controller from running the conftest hooks that each rank runs."""
    remove_hooks(config, (*OF_REPORTS, _FINISH), of=is_conftest)


class SuiteSession:
    """The plugin of one rank that counts its failed tests and ends its session."""

    def __init__(self, session: pytest.Session, failed_before: int) -> None:
        """Create the plugin.

        Args:
            session: pytest's session in this rank.
            failed_before: number of tests that failed in this rank's predecessors: a failure is followed by a new
                world.
        """
        self._session = session
        session.testsfailed = failed_before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a failed test as pytest does."""
        if report.failed and not hasattr(report, "wasxfail"):
            self._session.testsfailed += 1

    def finish(self) -> None:
        """Call the ``pytest_sessionfinish`` hooks of conftest files."""
        manager = self._session.config.pluginmanager
        others = [plugin for plugin in manager.get_plugins() if not is_conftest(plugin)]
        status = pytest.ExitCode.TESTS_FAILED if self._session.testsfailed else pytest.ExitCode.OK
        self._session.exitstatus = status
        manager.subset_hook_caller(_FINISH, others)(session=self._session, exitstatus=status)
