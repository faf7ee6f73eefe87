"""Tests without a world: run in the ordinary way by pytest, and written into the same journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disttest.model import Cause, Outcome, TestCase, TestResult
from disttest.running.bridge import message_of, outcome_of
from disttest.running.protocol import clean_text
from disttest.running.recorder import Recorder

if TYPE_CHECKING:
    import pytest

NOT_RETRIED = (
    "--retries is for tests with a world, which get a new one: ordinary tests run in the pytest process, and what a "
    "failure has left there would be part of the next attempt (pytest-rerunfailures does that, if you want it)"
)
_WORST_FIRST = (
    Outcome.FAILED,
    Outcome.ERROR,
    Outcome.XFAILED,
    Outcome.SKIPPED,
    Outcome.XPASSED,
    Outcome.PASSED,
)


class OrdinaryTests:
    """A pytest plugin that folds the reports of each ordinary test into one result."""

    def __init__(self, tests: dict[str, TestCase], recorder: Recorder, *, retries: int) -> None:
        self._tests = tests
        self._unsaid = retries > 0
        self._recorder = recorder
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._began_at_s = 0.0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        if nodeid in self._tests:
            self._began_at_s = self._recorder.now()
            self._recorder.test_started(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase has ended; tear-down is the last one."""
        if report.nodeid not in self._tests:
            return
        reports = self._reports.setdefault(report.nodeid, [])
        reports.append(report)
        if report.when == "teardown":
            result = self._result(report.nodeid, self._reports.pop(report.nodeid))
            self._recorder.test_finished(result)
            if result.outcome.is_bad and self._unsaid:
                self._unsaid = False
                self._recorder.noted(NOT_RETRIED)

    def _result(self, nodeid: str, reports: list[pytest.TestReport]) -> TestResult:
        by_outcome = {outcome_of(report): report for report in reversed(reports)}
        outcome = next(outcome for outcome in _WORST_FIRST if outcome in by_outcome)
        report = by_outcome[outcome]
        if outcome is Outcome.XPASSED and report.failed:  # a strict xfail that passed
            outcome = Outcome.FAILED
        return TestResult(
            nodeid=nodeid,
            outcome=outcome,
            cause=Cause.TEST if outcome.is_bad else None,
            started_at_s=self._began_at_s,
            duration_s=sum(report.duration for report in reports),
            phase=report.when,
            message="" if outcome is Outcome.PASSED else clean_text(message_of(report)),
            details=clean_text(report.longreprtext) if outcome.is_bad else "",
        )
