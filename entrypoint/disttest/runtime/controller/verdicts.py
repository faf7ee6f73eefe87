"""Results of the tests of a run: which failure counts, which is retried or waits for a proof, and pytest's reports.

pytest gets a test only after its last attempt, so ``-x``, ``--maxfail``, ``--lf`` and the exit code need no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from disttest.model import Cause, Outcome, TestCase, TestResult
from disttest.results.repeat import command_lines
from disttest.results.verdict import results_not_run, spoiled
from disttest.runtime.controller.early_skips import known_skip, vacuous
from disttest.runtime.controller.pytest_reports import (
    late_reports,
    report_warnings,
    reports_of,
    rerun_reports,
    skip_reports,
)
from disttest.runtime.controller.retries import Retries
from disttest.runtime.controller.run_recorder import RunRecorder
from disttest.runtime.messages.protocol import TestJudged


class Verdicts:
    """Results of the world tests of one session. Nothing here starts or ends a world."""

    def __init__(self, recorder: RunRecorder, retries: Retries, results: Callable[[], Path]) -> None:
        self._recorder = recorder
        self._retries = retries
        self._results = results
        self._items: Mapping[str, pytest.Item] = {}
        self._tests: Mapping[str, TestCase] = {}
        # Tests whose verdict pytest knows.
        self._told: set[str] = set()
        # Failures that may be the device's fault, without a decision yet.
        self._suspended: dict[str, TestJudged] = {}
        self._told_suites: set[str] = set()

    def begin(self, items: Mapping[str, pytest.Item], tests: Mapping[str, TestCase]) -> list[TestCase]:
        """Start with the tests of the session, by node id; return those that are not skipped already."""
        self._items, self._tests = items, tests
        return [test for nodeid, test in tests.items() if not self._skip_early(items[nodeid], test)]

    def _skip_early(self, item: pytest.Item, test: TestCase) -> bool:
        marked = known_skip(item)
        reason = vacuous(item) if marked is None else marked
        if reason is None:
            return False
        result = TestResult(
            nodeid=test.nodeid,
            outcome=Outcome.SKIPPED,
            started_at_s=self._recorder.now(),
            phase="setup",
            message=reason,
            torch_outcome=Outcome.PASSED if marked is None else None,
        )
        self._recorder.test_finished(result)
        self._send_to_pytest(item, skip_reports(item, reason))
        return True

    def judged(self, test: TestCase, judged: TestJudged, *, suspect: bool) -> None:
        """Handle the result of an attempt; if the device is suspect, decide about a failure later.

        A second result of an attempt means that a rank died after the first.
        """
        # A suspicious failure cannot be taken back from pytest, and -x would stop the run because of it.
        again = not suspect and self._retries.wants_another(judged.result)
        self._recorder.test_finished(judged.result, again=again)
        # Notes on a passed test are easy to miss, so this one is recorded for the run.
        if not judged.result.outcome.is_bad:
            for note in judged.result.superseded:
                self._recorder.noted(note, test.nodeid)
        if suspect:
            self._suspended[test.nodeid] = judged
        else:
            self._decide(test, judged)

    def _decide(self, test: TestCase, judged: TestJudged) -> None:
        """Schedule a retry, or report the result."""
        pause_s = self._retries.schedule_retry(test, judged)
        if pause_s is None:
            self._report_verdict(test, judged)
            return
        if judged.result.cause is Cause.INFRASTRUCTURE:
            self._recorder.noted(
                f"infrastructure, tried again in {pause_s:.1f} s: {judged.result.message}", test.nodeid
            )
        self._report_rerun(test, judged)

    def clear(self, is_open: Callable[[str], bool]) -> None:
        """Decide suspended failures that are proven not to be the device's fault."""
        for nodeid in [nodeid for nodeid in self._suspended if not is_open(nodeid)]:
            self._decide(self._tests[nodeid], self._suspended.pop(nodeid))

    def run_again(self, nodeids: Sequence[str], reason: str) -> None:
        """Run these tests again on other devices: the one that caused the failures is out of use."""
        for nodeid in nodeids:
            test, judged = self._tests[nodeid], self._excuse(nodeid, reason)
            self._retries.grant(test, judged)
            self._report_rerun(test, judged)

    def excuse(self, nodeids: Sequence[str], reason: str) -> None:
        """Report these failures as infrastructure errors: no device is left for another attempt."""
        for nodeid in nodeids:
            self._report_verdict(self._tests[nodeid], self._excuse(nodeid, reason))

    def _excuse(self, nodeid: str, reason: str) -> TestJudged:
        judged = self._suspended.pop(nodeid)
        excused = msgspec.structs.replace(judged, result=_blame_device(judged.result, reason))
        self._recorder.test_finished(excused.result)
        return excused

    def leave_out(self, nodeids: Collection[str], reason: str) -> None:
        """Leave out tests because of broken devices: one error for each suite, the others are skipped."""
        owed = [self._tests[nodeid] for nodeid in nodeids if not self._earlier_failure_stands(nodeid, reason)]
        for result in results_not_run(owed, reason, at_s=self._recorder.now(), told=self._told_suites):
            self._recorder.test_finished(result)
            if result.outcome.is_bad:
                self._report_verdict(self._tests[result.nodeid], TestJudged(result=result))
            else:
                item = self._items[result.nodeid]
                self._send_to_pytest(item, skip_reports(item, reason))

    def never_started(self, nodeids: Sequence[str], message: str) -> None:
        """Report tests for which no world could start as infrastructure errors."""
        for nodeid in nodeids:
            if self._earlier_failure_stands(nodeid, message):
                continue
            result = spoiled(nodeid, message, at_s=self._recorder.now())
            self._recorder.test_finished(result)
            self._report_verdict(self._tests[nodeid], TestJudged(result=result))

    def _earlier_failure_stands(self, nodeid: str, reason: str) -> bool:
        """Whether an earlier failure counts because the attempt that would have followed it will not run."""
        earlier = self._retries.withdraw(nodeid)
        if earlier is None:
            return False
        self._recorder.noted(f"not tried again: {reason}", nodeid)
        self._report_verdict(self._tests[nodeid], earlier)
        return True

    def report_unresolved(self) -> None:
        """Report the failures of tests that the end of the run kept from another attempt."""
        for nodeid, judged in (*self._retries.unresolved(), *self._suspended.items()):
            self._report_verdict(self._tests[nodeid], judged)

    def _report_verdict(self, test: TestCase, judged: TestJudged) -> None:
        """Report the outcome of a test to pytest, with all its attempts."""
        item, started = self._items[test.nodeid], self._recorder.started
        again = (
            command_lines(test, judged.result, started) if started and judged.result.outcome.is_bad else ()
        )
        if test.nodeid not in self._told:
            self._told.add(test.nodeid)
            self._send_to_pytest(item, reports_of(item, test, judged, self._results(), again))
            report_warnings(item, judged.result)
        # The test was reported as good before one of its ranks died.
        elif judged.result.outcome.is_bad:
            for report in late_reports(item, test, judged.result, self._results(), again):
                item.ihook.pytest_runtest_logreport(report=report)

    def _report_rerun(self, test: TestCase, judged: TestJudged) -> None:
        item = self._items[test.nodeid]
        self._send_to_pytest(item, rerun_reports(item, test, judged, self._results()))
        report_warnings(item, judged.result)

    def _send_to_pytest(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
        """Send all reports of a test together, so that its output is one block however many worlds run."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _blame_device(result: TestResult, reason: str) -> TestResult:
    """Turn the failure of a test into an infrastructure error of its device."""
    message = f"{result.message} (not the test's fault: {reason})"
    return msgspec.structs.replace(result, outcome=Outcome.ERROR, cause=Cause.INFRASTRUCTURE, message=message)
