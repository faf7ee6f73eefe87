"""Ordinary tests, which have no world: run by pytest in its own process and recorded in the same journal."""

from __future__ import annotations

import dis
import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import msgspec
import pytest
from _pytest.junitxml import xml_key

from disttest.host.compute_threads import allow_threads
from disttest.model import Cause, Outcome, TestCase, TestResult
from disttest.outgoing import shorten
from disttest.plugin_manager import plugin_manager
from disttest.results.further_failures import FurtherFailure, with_further_failures
from disttest.results.verdict import NOT_RUN
from disttest.runtime.controller.pytest_reports import RERUN
from disttest.runtime.controller.run_recorder import RunRecorder
from disttest.runtime.messages.portable import text_of
from disttest.runtime.messages.protocol import RunStop, clean_text
from disttest.runtime.messages.raised import describe_raised, failed_outcome, first_exit, stop_of
from disttest.runtime.rank.bridge import details_of, longrepr_text, message_of, outcome_of
from disttest.runtime.rank.child import use_cuda_freely
from disttest.runtime.rank.recording import TestRecorder

if TYPE_CHECKING:
    from disttest.runtime.controller.session import RunSession

NOT_RETRIED = (
    "--retries is for tests with a world, which get a new one: ordinary tests run in the pytest process, where "
    "traces of a failure would affect the next attempt; --isolate-files gives them processes of their own"
)


def stop_of_test(error: BaseException) -> RunStop | None:
    """Return the end of the run that a test requested; None for Ctrl-C.

    Both are a KeyboardInterrupt. That of a signal appears at any instruction; that of a test comes from a raise.
    """
    if isinstance(error, KeyboardInterrupt):
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        # The handler of SIGINT raises between two instructions, which need not be a raise.
        if (
            last is None
            or last.tb_frame.f_code.co_code[last.tb_lasti] != _RAISE
            or _is_of_loop(last.tb_frame)
        ):
            return None
    return stop_of(first_exit(error))


def _is_of_loop(frame: FrameType) -> bool:
    """Whether an event loop raises: it cancels its task on SIGINT, and raises afterwards."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("asyncio", "trio", "uvloop")


_RAISE = dis.opmap["RAISE_VARARGS"]
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

    def __init__(self, tests: dict[str, TestCase], recorder: RunRecorder, *, retries: int) -> None:
        self._tests = tests
        self._unsaid = retries > 0
        self._recorder = recorder
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._began_at_s = 0.0
        # Greater than one if a plugin repeats tests.
        self._attempts: Counter[str] = Counter()
        self._recording = TestRecorder()
        # The test that was judged last.
        self._judged = ""
        # The last result, and whether another attempt follows.
        self._unwritten: tuple[TestResult, bool] | None = None

    def record_for_junit(self, config: pytest.Config) -> None:
        """Keep attributes and properties of the suite, unless pytest writes them into a file."""
        if config.stash.get(xml_key, None) is None:
            self._recording.stand_in_for_junit(config)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record the start of a test."""
        self._write()
        if nodeid in self._tests:
            self._began_at_s = self._recorder.now()
            self._attempts[nodeid] += 1
            self._recorder.test_started(nodeid, attempt=self._attempts[nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the report of a phase."""
        if report.nodeid in self._tests:
            self._reports.setdefault(report.nodeid, []).append(report)
            self._recording.add_report(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Judge an attempt. pytest-rerunfailures 16.1 reports no tear-down of one that it repeats."""
        if nodeid in self._reports:
            self._judge(nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Judge a test whose protocol another plugin ran and did not report, or not completely."""
        try:
            result = yield
        except (pytest.exit.Exception, KeyboardInterrupt) as error:
            self._write()
            if item.nodeid in self._tests and stop_of_test(error) is not None:
                self._recorder.test_finished(self._stopped(item.nodeid, error))
            raise
        if item.nodeid in self._tests and self._judged != item.nodeid:
            self._judge(item.nodeid)
        self._write()
        return result

    def _judge(self, nodeid: str) -> None:
        self._judged = nodeid
        reports = self._reports.pop(nodeid, [])
        result = self._result(nodeid, reports) if reports else self._not_run(nodeid)
        # pytest-rerunfailures repeats tests within one protocol.
        again = any(report.outcome == RERUN for report in reports)
        self._unwritten = (result, again)
        # Said once for a run.
        if result.outcome.is_bad and self._unsaid and not again:
            self._unsaid = False
            self._recorder.noted(NOT_RETRIED)

    def _write(self) -> None:
        """Write a result after pytest has passed on the warnings of its test, which it does after tear-down."""
        if self._unwritten is None:
            return
        (result, again), self._unwritten = self._unwritten, None
        by_main = self._recording.take()
        self._recorder.test_finished(msgspec.structs.replace(result, by_main=by_main), again=again)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str
    ) -> None:
        """Keep a warning of an ordinary test."""
        if when == "runtest" and nodeid in self._tests:
            self._recording.warn(warning_message)

    def _stopped(self, nodeid: str, error: BaseException) -> TestResult:
        """Build the result of a test that ended the run."""
        raised = describe_raised(first_exit(error))
        # Each phase but the last one has ended with a report. Subtests report within the call.
        ended = sum(not _is_subtest(report) for report in self._reports.pop(nodeid, []))
        phase = {0: "setup", 1: "call"}.get(ended, "teardown")
        return TestResult(
            nodeid=nodeid,
            outcome=failed_outcome(phase, xfail=False),
            attempt=max(1, self._attempts[nodeid]),
            cause=Cause.TEST,
            started_at_s=self._began_at_s,
            duration_s=max(0.0, self._recorder.now() - self._began_at_s),
            phase=phase,
            message=shorten(clean_text(raised.message)),
            details=shorten(clean_text(raised.details)),
        )

    def _not_run(self, nodeid: str) -> TestResult:
        return TestResult(
            nodeid=nodeid, outcome=Outcome.NOT_RUN, started_at_s=self._began_at_s, message=NOT_RUN
        )

    def _result(self, nodeid: str, reports: list[pytest.TestReport]) -> TestResult:
        parts = [(_counted_outcome(report), report) for report in reports]
        # Reversed, so that of several reports with one outcome the first one is kept.
        by_outcome = {outcome: report for outcome, report in reversed(parts) if outcome is not None}
        if set(by_outcome) <= {Outcome.PASSED} and not any(report.when == "call" for report in reports):
            return self._not_run(nodeid)
        outcome = next(outcome for outcome in _WORST_FIRST if outcome in by_outcome)
        report = by_outcome[outcome]
        result = TestResult(
            nodeid=nodeid,
            outcome=outcome,
            attempt=max(1, self._attempts[nodeid]),
            cause=Cause.TEST if outcome.is_bad else None,
            started_at_s=self._began_at_s,
            duration_s=sum(report.duration for report in reports),
            phase=report.when,
            message="" if outcome is Outcome.PASSED else shorten(clean_text(message_of(report))),
            details=details_of(report, outcome),
        )
        others = (other for counted, other in parts if other is not report and counted and counted.is_bad)
        return with_further_failures(result, map(_further_failure, others))


def _further_failure(report: pytest.TestReport) -> FurtherFailure:
    message, details = clean_text(message_of(report)), clean_text(longrepr_text(report))
    return FurtherFailure(None, text_of(report.when), shorten(message), shorten(details))


def _counted_outcome(report: pytest.TestReport) -> Outcome | None:
    """Classify a report; None for a subtest that did not fail, and for a skip in tear-down."""
    if report.outcome == RERUN:
        return Outcome.FAILED if report.when == "call" else Outcome.ERROR
    outcome = outcome_of(report)
    # A strict xfail that passed.
    if outcome is Outcome.XPASSED and report.failed:
        return Outcome.FAILED
    too_late = report.when == "teardown" and outcome is Outcome.SKIPPED
    return None if (_is_subtest(report) and not outcome.is_bad) or too_late else outcome


def _is_subtest(report: pytest.TestReport) -> bool:
    return hasattr(report, "context")


def be_an_ordinary_process() -> None:
    """Undo the measures that kept this process fit to be forked. Ordinary tests run as they would without the plugin."""
    allow_threads()
    use_cuda_freely()


def run_ordinary(
    session: pytest.Session, run: RunSession, note: Callable[[str], None], *, thaw: bool
) -> None:
    """Run them; ``note`` records the activity of this process, ``thaw`` lets the collector see the objects at fork time.

    Raises:
        DeadlinePassed: the deadline of the run passed before the last of them.
    """
    items = [item for item, _ in run.ordinary]
    if not items:
        # Plugins may use CUDA at the end of the session. No test computes any more, so threads stay limited.
        use_cuda_freely()
        return
    be_an_ordinary_process()
    if thaw:
        gc.unfreeze()
    plugin_manager().call("disttest_ordinary_tests_begin", options=run.options)
    for index, item in enumerate(items):
        run.check_deadline()
        following = items[index + 1] if index + 1 < len(items) else None
        note(f"running {item.nodeid}")
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except (pytest.exit.Exception, KeyboardInterrupt) as error:
            run.leave_if_copy()
            if (stop := stop_of_test(error)) is None:
                raise
            run.stop(f"{item.nodeid} ended the run: {stop.reason}")
            pytest.exit(run.reason, returncode=stop.exit_code)
        run.leave_if_copy()
        # The end of this loop is that of pytest's own (`pytest_runtestloop` in _pytest/main.py), which it
        # replaces.
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
