"""allure-pytest: one result for each test with a world, written by the controller from its verdict.

allure builds a result while a test runs in its process. World tests do not run in this process. Once their verdict
is known, its listener is taken through the same steps with pytest's reports of the test. The format of a result:
https://allurereport.org/docs/how-it-works-test-result-file/.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from disttest.hookspecs import hookimpl, of_pytest
from disttest.model import Outcome

if TYPE_CHECKING:
    import pytest


_LISTENER = "allure_listener"


@hookimpl
def disttest_worlds_begin(items: Sequence[pytest.Item], config: pytest.Config) -> Sequence[str]:
    """Have allure write a result for each of these tests, if allure-pytest is active."""
    listener = config.pluginmanager.getplugin(_LISTENER)
    if listener is not None:
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


class OneResultEach:
    """A plugin of pytest that takes allure's listener through each test.

    Args:
        listener: allure's listener.
        items: the tests that run in ranks, by node id.
    """

    def __init__(self, listener: Any, items: Mapping[str, pytest.Item]) -> None:
        self._listener = listener
        self._items = items
        self._reports: defaultdict[str, list[pytest.TestReport]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the reports of a test until it is finished."""
        self._reports[report.nodeid].append(report)

    @of_pytest(tryfirst=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Build the result, which allure's own hook then writes. Attempts that are retried have none."""
        from disttest.runtime.controller.pytest_reports import RERUN

        reports, item = self._reports.pop(nodeid, []), self._items.get(nodeid)
        if item is not None and not any(report.outcome == RERUN for report in reports):
            self._make(item, reports)

    def _make(self, item: pytest.Item, reports: list[pytest.TestReport]) -> None:
        _lead(self._listener.pytest_runtest_setup(item))
        # A crashed rank has sent no report of its set-up, with which allure begins a result.
        if not any(report.when == "setup" for report in reports):
            self._write_result(item, _passed(item))
        for report in reports:
            if report.when == "teardown":
                _lead(self._listener.pytest_runtest_teardown(item))
            self._write_result(item, report)
        whole_s = sum(report.duration or 0.0 for report in reports)
        result = self._listener.allure_logger.get_test(None)
        if result is not None:
            # allure takes the times of these calls, all of which happen after the test.
            result.start = result.stop - round(1000 * whole_s)

    def _write_result(self, item: pytest.Item, report: pytest.TestReport) -> None:
        call = SimpleNamespace(excinfo=_exception_of(report))
        _lead(
            self._listener.pytest_runtest_makereport(item, call), SimpleNamespace(get_result=lambda: report)
        )


def _passed(item: pytest.Item) -> pytest.TestReport:
    import pytest

    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={},
        outcome="passed",
        longrepr=None,
        when="setup",
    )


def _exception_of(report: pytest.TestReport) -> SimpleNamespace | None:
    """Return the parts of an exception that allure reads: its text, and whether an assertion failed."""
    from disttest.runtime.controller.pytest_reports import WorldFailure

    if not isinstance(report.longrepr, WorldFailure):
        return None
    result = report.longrepr.result
    kind = AssertionError if result.outcome is Outcome.FAILED else RuntimeError
    return SimpleNamespace(exconly=lambda: result.message, value=kind(result.message))


def _lead(step: Generator[None, Any, None], outcome: object = None) -> None:
    """Run through a hook wrapper as if the wrapped hook had this outcome."""
    next(step)
    try:
        step.send(outcome)
    except StopIteration:
        return
