"""Time limits of ordinary tests in the pytest process: an interruptible test fails at its limit, and the run continues.

A signal enforces the limit, so the test's own stack is its traceback; it interrupts nearly every hang and costs
nothing. A C call that ignores signals lasts until the deadline of the run; isolated tests are ended in any case.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from collections.abc import Generator, Iterator
from types import FrameType

import pytest

from disttest.clock import monotonic
from disttest.host.descendants import end_new_children, started_children
from disttest.limits import CLEAN_UP_S, NO_LIMIT_S, RENDERING_LEAST_S, RENDERING_NEXT_S, RENDERING_S
from disttest.model import TestCase
from disttest.runtime.controller.expand import limit_mark
from disttest.runtime.messages.raised import describe_raised
from disttest.runtime.rank.bridge import expected_failure, raised_in

# Bound at import: tests may monkeypatch them.
_signal, _getsignal = signal.signal, signal.getsignal
_setitimer, _getitimer = signal.setitimer, signal.getitimer


class TimeLimits:
    """A pytest plugin; set-up and call of a test share its limit, and tear-down has another one."""

    def __init__(self, tests: dict[str, TestCase], *, asked: bool) -> None:
        """Enforce the limits of these tests.

        Args:
            tests: tests by node id.
            asked: whether a limit was set for the whole run, which takes precedence over another plugin's.
        """
        self._tests, self._asked = tests, asked
        self._began_s = 0.0
        self._limits = False
        # The reason why the last phase failed, whatever its outcome; empty if it ended before its limit.
        self._reached = ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Start the time."""
        self._began_s = monotonic()
        with self._limited(item, "setup"):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Limit the call to the remaining time."""
        with self._limited(item, "call"):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """Restart the time: clean-up after a timeout needs some."""
        self._began_s = monotonic()
        with self._limited(item, "teardown"):
            return (yield)

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool | None:
        """Stop pytest-timeout from limiting a test that is limited here."""
        left_alone = self._is_of_another(item) or (not self._limits and _is_in_use())
        return None if left_alone else True

    def forgive(self, seconds: float) -> None:
        """Do not count this time of the running test."""
        self._began_s += seconds

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Limit the rendering of a failure, which calls ``repr()`` on the test's objects.

        A phase that reached its limit has failed, even if the test caught the exception, or skipped afterwards.
        """
        reached, self._reached = self._reached, ""
        error = raised_in(item, call)
        if error is None:
            return _failed_at_limit((yield), reached)
        try:
            with self._limited(item, call.when, renders=True):
                return _failed_at_limit((yield), reached)
        except _RenderingTookTooLong:
            return _unrendered(item, call, error)

    @contextlib.contextmanager
    def _limited(self, item: pytest.Item, phase: str, *, renders: bool = False) -> Iterator[None]:
        if not renders:
            self._reached = ""
        test = self._tests.get(item.nodeid)
        if test is None or test.timeout_s >= NO_LIMIT_S or self._is_of_another(item) or _is_in_use():
            yield
            return
        # Processes that fixtures started are theirs to end.
        before_call = started_children() if phase == "call" else None
        message = f"timed out after {test.timeout_s:g} s in {phase}"

        def interrupt(_: int, frame: FrameType | None) -> None:
            # pytest leaves this frame out of the test's traceback.
            __tracebackhide__ = True
            if renders:
                raise _RenderingTookTooLong
            self._reached = f"{message}; its outcome afterwards does not count"
            # Raise again: saferepr continues with the next value, and a test with its next subtest. Blocks that clean up
            # need time, too.
            next_s = RENDERING_NEXT_S if _is_in_saferepr(frame) else max(CLEAN_UP_S, test.timeout_s)
            _setitimer(signal.ITIMER_REAL, next_s)
            item.add_report_section(phase, "other threads", _other_threads())
            ended = () if before_call is None else end_new_children(before_call)
            # Its exception derives from BaseException, so `except Exception` in the test does not catch it.
            pytest.fail("\n".join([message, *ended]))

        def left_s() -> float:
            return self._began_s + test.timeout_s - monotonic()

        before = _signal(signal.SIGALRM, interrupt)
        self._limits = True
        first_s = max(RENDERING_LEAST_S, min(left_s(), RENDERING_S)) if renders else left_s()
        # Repeated while a report is rendered: the traceback module swallows exceptions raised in a str().
        again_s = RENDERING_NEXT_S if renders else 0.0
        # Zero would disable the timer.
        _setitimer(signal.ITIMER_REAL, max(1e-6, first_s), again_s)
        try:
            yield
        finally:
            # The timer first. An alarm after the handler is gone would have its default action, which ends
            # the process.
            _setitimer(signal.ITIMER_REAL, 0)
            _signal(signal.SIGALRM, before)
            self._limits = False
            if not renders and left_s() <= 0 and not self._reached:
                self._reached = f"{message}; SIGALRM, which ends a test there, was replaced or blocked"

    def _is_of_another(self, item: pytest.Item) -> bool:
        """Whether pytest-timeout enforces the limit."""
        # pytest-timeout uses the same signal, so only one of the two may be active for a test.
        if not item.config.pluginmanager.hasplugin("timeout"):
            return False
        # There it keeps the limit of its option, setting or variable (pytest-timeout 2.4).
        for_all = getattr(item.config, "_env_timeout", None)
        return limit_mark(item) is not None or bool(for_all and not self._asked)


class _RenderingTookTooLong(KeyboardInterrupt):
    """Raised in the middle of a ``repr()`` or ``str()``. A KeyboardInterrupt, since saferepr swallows all others."""


def _failed_at_limit(report: pytest.TestReport, reached: str) -> pytest.TestReport:
    """Return the report of a phase, turned into a failure if the phase reached its limit."""
    if reached and not report.failed:
        report.outcome, report.longrepr = "failed", reached
        # pytest counts a failure with this attribute as an expected one.
        vars(report).pop("wasxfail", None)
    return report


def _unrendered(item: pytest.Item, call: pytest.CallInfo[None], error: BaseException) -> pytest.TestReport:
    """Build the report of a failure without any value of the test."""
    raised = describe_raised(error)
    # `TestReport.from_item_and_call` would render the exception, which is what did not return. It reads the captured
    # output from the same private list (pytest 8.4 to 9.2).
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=f"{raised.with_place}; its report could not be rendered\n\n{raised.details}",
        when=call.when,  # type: ignore[arg-type]
        sections=[(f"Captured {name} {when}", text) for when, name, text in item._report_sections],  # noqa: SLF001
        duration=call.duration,
        start=call.start,
        stop=call.stop,
    )
    if (reason := expected_failure(item, error)) is not None:
        report.outcome, report.wasxfail = "skipped", reason
    return report


def _is_in_saferepr(frame: FrameType | None) -> bool:
    """Whether pytest is rendering a value of the test.

    It swallows an exception raised there, and renders the next value.
    """
    while frame is not None and not frame.f_code.co_filename.endswith("/_pytest/_io/saferepr.py"):
        frame = frame.f_back
    return frame is not None


def _is_in_use() -> bool:
    """Whether another owner uses the alarm."""
    return _getsignal(signal.SIGALRM) is not signal.SIG_DFL or any(_getitimer(signal.ITIMER_REAL))


def _other_threads() -> str:
    # Both are documented, and there is no other way to see the stacks of other threads in a report (Python 3.11 to
    # 3.13).
    me = sys._getframe()  # noqa: SLF001
    stacks = [frame for frame in sys._current_frames().values() if not _is_below(me, frame)]  # noqa: SLF001
    return "\n".join("".join(traceback.format_stack(frame)) for frame in stacks)


def _is_below(frame: FrameType | None, other: FrameType) -> bool:
    while frame is not None and frame is not other:
        frame = frame.f_back
    return frame is not None
