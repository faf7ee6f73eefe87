"""What pytest reports in a child process, sent up the channel; the only receiver of reports there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from time import CLOCK_MONOTONIC, clock_gettime
from typing import Any, cast

import pytest

from disttest.masking import masker
from disttest.model import Outcome
from disttest.results.verdict import STRICT_XPASS
from disttest.running.protocol import Channel, PhaseEnded, clean_text

DETAILS_LIMIT = 256 * 1024
_WORTH_TELLING_S = 0.05
"""A phase that took longer is told at once: should a later one never end, it is known what came before."""
_REPORT_LIMIT = 4 * 1024 * 1024


class Bridge:
    """The pytest plugin of a child process: notes phases, sends reports up."""

    def __init__(self, channel: Channel, config: pytest.Config, *, on_phase: Callable[[str], None]) -> None:
        self._channel = channel
        self._config = config
        self._on_phase = on_phase
        self._ended_at_s = 0.0

    def take_over(self) -> None:
        """Silence every reporter that was inherited, and become the only one."""
        for name in ("pytest_runtest_logstart", "pytest_runtest_logreport", "pytest_runtest_logfinish"):
            hook = getattr(self._config.hook, name)
            for implementation in list(hook.get_hookimpls()):
                hook._remove_plugin(implementation.plugin)  # noqa: SLF001  # pluggy has no public way per hook
        self._config.pluginmanager.register(self, "disttest-bridge")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        """The call begins."""
        self._on_phase("call")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """The tear-down begins."""
        self._on_phase("teardown")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        """A phase has ended: note when."""
        # Stamped before the traceback is formatted, so that ranks are compared by when they failed.
        # Not ``time.monotonic``, which tests replace to make time stand still.
        self._ended_at_s = clock_gettime(CLOCK_MONOTONIC)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A report is ready: send it at once if peers may wait for this rank in vain, else with the next one."""
        message = _phase_ended(report, self._config, self._ended_at_s)
        took_long = message.duration_s > _WORTH_TELLING_S and not message.partial
        urgent = message.outcome.is_final or took_long
        (self._channel.send if urgent else self._channel.hold)(message)


def _phase_ended(report: pytest.TestReport, config: pytest.Config, ended_at_s: float) -> PhaseEnded:
    outcome = outcome_of(report)
    data = _serialisable(report, config)
    return PhaseEnded(
        phase=report.when,
        outcome=outcome,
        partial=data.get("_report_type") == "SubTestReport",
        duration_s=max(0.0, report.duration),
        ended_at_s=ended_at_s,
        message=clean_text(message_of(report))[:2000],
        details=_details(report, outcome),
        report=_as_json(data, report),
    )


def outcome_of(report: pytest.TestReport) -> Outcome:
    """What a report says, in our words."""
    if hasattr(report, "wasxfail"):
        return Outcome.XFAILED if report.skipped else Outcome.XPASSED
    if report.failed:
        if str(report.longrepr).startswith(STRICT_XPASS):
            return Outcome.XPASSED
        return Outcome.FAILED if report.when == "call" else Outcome.ERROR
    return Outcome.SKIPPED if report.skipped else Outcome.PASSED


def message_of(report: pytest.TestReport) -> str:
    """One line for the whole report."""
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail)
    longrepr = report.longrepr
    if isinstance(longrepr, tuple):
        return longrepr[2].removeprefix("Skipped: ")
    crash = getattr(longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(longrepr or "")
    return text.strip().split("\n", 1)[0]


def _details(report: pytest.TestReport, outcome: Outcome) -> str:
    if not outcome.is_bad:
        return ""
    sections = (f"----- {title} -----\n{content}" for title, content in report.sections)
    return shorten(clean_text("\n".join([report.longreprtext, *sections])))


def shorten(text: str) -> str:
    """Details of a failure, not longer than a report can carry: head and tail."""
    if len(text) <= DETAILS_LIMIT:
        return text
    half = DETAILS_LIMIT // 2
    return f"{text[:half]}\n\n[disttest: {len(text) - 2 * half} characters cut]\n\n{text[-half:]}"


def _serialisable(report: pytest.TestReport, config: pytest.Config) -> dict[str, Any]:
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    return cast("dict[str, Any]", masker.tree(data) if masker.active else data)


def _as_json(data: dict[str, Any], report: pytest.TestReport) -> str:
    """The report as ASCII JSON; one that is too long loses its traceback, not its outcome."""
    text = json.dumps(data, default=repr)
    if len(text) > _REPORT_LIMIT:
        text = json.dumps({**data, "longrepr": clean_text(message_of(report)), "sections": []}, default=repr)
    return text
