"""Bridge from pytest's reports in a child process to its world; the only receiver of reports in that process."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator
from json import dumps
from time import CLOCK_MONOTONIC, clock_gettime
from typing import Any

import msgspec
import pytest
from _pytest.skipping import xfailed_key

from disttest.host.copies import is_copy
from disttest.host.process import leave_if_copy
from disttest.limits import PHASE_REPORT_S
from disttest.model import Outcome
from disttest.outgoing import shorten, shorten_all
from disttest.results.headline import headline
from disttest.results.rulings import STRICT_XPASS
from disttest.results.verdict import is_consequence
from disttest.runtime.messages.portable import report_as_json, sections_of, text_of
from disttest.runtime.messages.protocol import Channel, PhaseEnded, RunStop, clean_text
from disttest.runtime.messages.raised import (
    asked_stop,
    describe_held_back,
    describe_raised,
    failed_outcome,
    first_exit,
    is_skip,
    stop_of,
)
from disttest.runtime.rank.recording import TestRecorder

OF_REPORTS = ("pytest_runtest_logstart", "pytest_runtest_logreport", "pytest_runtest_logfinish")
_REPORT_LIMIT = 4 * 1024 * 1024


def remove_hooks(
    config: pytest.Config, names: tuple[str, ...], *, of: Callable[[object], bool] = lambda _: True
) -> None:
    """Remove the implementations of these hooks from the selected plugins."""
    for name in names:
        hook = getattr(config.hook, name)
        for implementation in list(hook.get_hookimpls()):
            if of(implementation.plugin):
                # pluggy 1.7 can only remove a plugin from all hooks.
                hook._remove_plugin(implementation.plugin)  # noqa: SLF001


class Bridge:
    """The pytest plugin of a child process: records phases and sends reports to the world."""

    def __init__(
        self, channel: Channel, config: pytest.Config, *, on_phase: Callable[[str, bool, bool], None]
    ) -> None:
        self._channel = channel
        self._config = config
        self._on_phase = on_phase
        self._ended_at_s = 0.0
        self._phase = "setup"
        self._session: pytest.Session | None = None
        self._recorder = TestRecorder()

    def take_over(self, *, silences: Callable[[object], bool] = lambda _: True) -> None:
        """Silence inherited reporters and become the only receiver of reports.

        Args:
            silences: whether to remove the reporting hooks of a plugin.
        """
        remove_hooks(self._config, OF_REPORTS, of=silences)
        self._config.pluginmanager.register(self, "disttest-bridge")
        # pluggy repeats historic warnings to a new plugin, including those that pytest has reported already.
        self._recorder.take()
        self._recorder.stand_in_for_junit(self._config)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Record the start of set-up. Not ``tryfirst``: pytest evaluates skip and xfail marks before."""
        self._begin("setup", item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Record the start of the call."""
        self._begin("call", item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Record the start of tear-down."""
        self._begin("teardown", item)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Report a test that ends the run (``pytest.exit``, Ctrl-C) and leave the end of this process to its world."""
        self._phase, self._session = "setup", item.session
        try:
            return (yield)
        except (pytest.exit.Exception, KeyboardInterrupt) as error:
            leave_if_copy(1)
            self._ended_at_s = clock_gettime(CLOCK_MONOTONIC)
            # Sent, not held: the world must learn of it even if the session ends here.
            self._channel.send(self._stopped(item, first_exit(error)))
            # pytest stops the protocol of the item at a true value. The world decides how the run ends.
            return True
        finally:
            self._recorder.send(self._channel)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        """Keep a warning of the test; pytest calls this after the last phase."""
        if when == "runtest":
            self._recorder.warn(warning_message)

    def _stopped(self, item: pytest.Item, error: BaseException) -> PhaseEnded:
        return msgspec.structs.replace(
            self._failure_of(item, self._phase, error, duration_s=0.0),
            # No xfail mark covers the end of the run.
            outcome=failed_outcome(self._phase, xfail=False),
            stop=_cleaned(stop_of(error)),
        )

    def _begin(self, phase: str, item: pytest.Item) -> None:
        self._phase = phase
        marked = item.stash.get(xfailed_key, None) is not None or _is_marked_by_unittest(item)
        marked = marked and not item.config.getoption("runxfail", default=False)
        # The world makes up the report of an assertion whose values cannot be shown in time.
        self._on_phase(phase, marked, expected_failure(item, AssertionError()) is not None)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Record the end of a phase; send a failure before its report is rendered."""
        # Stamped before the traceback is formatted, so that ranks are compared by the time of their failure. A system
        # call instead of `time.monotonic`, because tests replace the latter to freeze time.
        self._ended_at_s = clock_gettime(CLOCK_MONOTONIC)
        error = raised_in(item, call)
        # A copy has closed its channel and reports by its exit code only (`leave_as_copy`).
        if error is not None and not is_copy():
            known = self._failure_of(item, text_of(call.when), error, duration_s=call.duration or 0.0)
            held_back = describe_held_back(error)
            self._channel.send(msgspec.structs.replace(known, unrendered=True, held_back=held_back))
        return (yield)

    def _failure_of(
        self, item: pytest.Item, phase: str, error: BaseException, *, duration_s: float
    ) -> PhaseEnded:
        """Describe a failure without running code of the test."""
        raised = describe_raised(error)
        return PhaseEnded(
            phase=phase,
            outcome=failed_outcome(phase, xfail=expected_failure(item, error) is not None),
            duration_s=max(0.0, duration_s),
            ended_at_s=self._ended_at_s,
            # Masked before it is cut: half of a value would not be recognised.
            message=clean_text(raised.message)[:2000],
            details=shorten(clean_text(raised.details)),
            because_of=_awaited_ranks() if is_consequence(raised.message) else (),
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Queue a report; send it immediately if peers may be waiting for this rank in vain."""
        leave_as_copy(report)
        self._recorder.add_report(report)
        message = _phase_ended(report, self._config, self._ended_at_s)
        if report.when == "teardown" and self._session is not None:
            message = msgspec.structs.replace(message, stop=_cleaned(asked_stop(self._session)))
        # A later hang must not lose the report of a phase that took long.
        took_long = message.duration_s > PHASE_REPORT_S and not message.partial
        urgent = message.outcome.is_failure or took_long
        (self._channel.send if urgent else self._channel.hold)(message)


def _cleaned(stop: RunStop | None) -> RunStop | None:
    return stop and msgspec.structs.replace(stop, reason=shorten(clean_text(stop.reason)))


def _awaited_ranks() -> tuple[int, ...]:
    # Imported late: it loads `observe`, which plain pytest runs never need.

    from disttest.runtime.rank.waits import awaited_ranks

    return awaited_ranks()


def raised_in(item: pytest.Item, call: pytest.CallInfo[None]) -> BaseException | None:
    """Return the exception that fails a phase; None if the phase passes or skips.

    For unittest methods pytest keeps the exception in the item, and moves it into the call while it makes the report.
    """
    # `TestCaseFunction._excinfo` is private to pytest; without it the exception is unknown until makereport.
    kept = getattr(item, "_excinfo", None) or [call.excinfo]
    error = kept[0].value if kept[0] is not None else None
    return None if is_skip(error) else error


def _is_marked_by_unittest(item: pytest.Item) -> bool:
    """Whether the method or its class is marked with ``unittest.expectedFailure``."""
    owners = (getattr(item, "obj", None), getattr(item, "cls", None))
    return any(getattr(owner, "__unittest_expecting_failure__", False) for owner in owners)


def expected_failure(item: pytest.Item, error: BaseException) -> str | None:
    """Return pytest's reason for an expected failure with this exception; None if the failure is not expected."""
    marked = item.stash.get(xfailed_key, None)
    # `--runxfail` makes pytest ignore xfail marks.
    if marked is None or item.config.option.runxfail:
        return None
    kinds = marked.raises
    if isinstance(kinds, (type, tuple)) and not isinstance(error, kinds):
        return None
    # Matchers such as RaisesGroup would run code of the test, so they are not evaluated.
    return marked.reason


def leave_as_copy(report: pytest.TestReport) -> None:
    """End a fork that a test made and that returned into pytest; its exit code reports to its parent.

    This happens when the report is logged, not when it is made: a plugin such as pytest-forked makes the report in a
    fork, and logs it in the parent.
    """
    is_passed_subtest = hasattr(report, "context") and not report.failed
    if not is_copy() or is_passed_subtest:
        return
    if report.failed:
        text = clean_text(message_of(report))
        print(f"disttest: a fork that {report.nodeid} made has failed: {text}", file=sys.stderr)  # noqa: T201
    leave_if_copy(int(report.failed))


def _phase_ended(report: pytest.TestReport, config: pytest.Config, ended_at_s: float) -> PhaseEnded:
    outcome = outcome_of(report)
    data, text = report_as_json(report, config)
    return PhaseEnded(
        phase=text_of(report.when),
        outcome=outcome,
        strict=is_strict(report),
        partial=hasattr(report, "context"),
        duration_s=max(0.0, report.duration or 0.0),
        ended_at_s=ended_at_s,
        message=clean_text(message_of(report))[:2000],
        details=details_of(report, outcome),
        report=_within_limit(text, data, report),
    )


def is_strict(report: pytest.TestReport) -> bool:
    """Whether the test passed although it has a strict xfail mark; pytest tells it by its message alone."""
    # https://github.com/pytest-dev/pytest/blob/8.4.0/src/_pytest/skipping.py#L286
    return report.failed and isinstance(report.longrepr, str) and report.longrepr.startswith(STRICT_XPASS)


def outcome_of(report: pytest.TestReport) -> Outcome:
    """Translate a report's outcome."""
    if hasattr(report, "wasxfail"):
        return Outcome.XFAILED if report.skipped else Outcome.XPASSED
    if report.failed:
        if is_strict(report):
            return Outcome.XPASSED
        return Outcome.FAILED if report.when == "call" else Outcome.ERROR
    return Outcome.SKIPPED if report.skipped else Outcome.PASSED


def message_of(report: pytest.TestReport) -> str:
    """Return the headline of a report."""
    if hasattr(report, "context"):
        return f"{_subtest(report.context)} {_message_of(report)}".strip()
    return _message_of(report)


def _subtest(context: Any) -> str:
    """Format a subtest as pytest does: ``[case] (i=2)``."""
    message, arguments = getattr(context, "msg", None), getattr(context, "kwargs", None) or {}
    words = [f"[{text_of(message)}]"] if message is not None else []
    if arguments:
        listed = ", ".join(f"{name}={text_of(value)}" for name, value in sorted(arguments.items()))
        words.append(f"({listed})")
    return " ".join(words)


def _message_of(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return text_of(report.wasxfail)
    longrepr = report.longrepr
    if isinstance(longrepr, tuple) and len(longrepr) == 3:
        return text_of(longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(longrepr, "reprcrash", None)
    text = text_of(crash.message) if crash is not None else text_of("" if longrepr is None else longrepr)
    return headline(text)


def details_of(report: pytest.TestReport, outcome: Outcome) -> str:
    """Return the text of a failure with the output that pytest has captured; empty without a failure."""
    if not outcome.is_bad:
        return ""
    # Output may look like entries of a traceback, the last of which is the place of the failure.
    sections = (f"----- {title} -----\n{content}" for title, content in sections_of(report))
    return shorten(clean_text("\n".join([*sections, longrepr_text(report)])))


def longrepr_text(report: pytest.TestReport) -> str:
    """Return the whole text of a failure."""
    try:
        return report.longreprtext
    except Exception:  # noqa: BLE001 - an object of a plugin or conftest
        return text_of(report.longrepr)


def _within_limit(text: str, data: dict[str, Any], report: pytest.TestReport) -> str:
    """Return the report; if it is too long, cut its texts and drop its traceback; its outcome stays."""
    # Beyond MAX_MESSAGE the channel would shorten every text of the message, or refuse it.
    if len(text) <= _REPORT_LIMIT:
        return text
    place = data["longrepr"] if report.skipped else None
    message = clean_text(message_of(report))
    essential = {"longrepr": message, "sections": [], "user_properties": []}
    if isinstance(place, list | tuple):  # a skip: pytest insists on file, line and reason
        essential["longrepr"] = [*place[:2], f"Skipped: {message}"]
    return dumps(shorten_all({**data, **essential}), default=text_of)
