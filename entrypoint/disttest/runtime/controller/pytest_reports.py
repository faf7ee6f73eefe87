"""Convert a verdict to the reports that pytest's reporters understand (terminal, junitxml, lastfailed)."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter
from _pytest.terminal import getreportopt

from disttest.model import Outcome, TestCase, TestResult, WorldKind, rank_name
from disttest.outgoing import outgoing
from disttest.results.directory import short_path
from disttest.results.findings import describe_plugins
from disttest.results.narrative import describe_ranks, without_stacks
from disttest.results.recorded import warning_text, warnings_by_rank
from disttest.runtime.messages.portable import masked, sections_of, serialisable
from disttest.runtime.messages.protocol import TestJudged
from disttest.runtime.rank.bridge import outcome_of
from disttest.safe_open import Tree

RERUN = "rerun"
"""Outcome of a report for an attempt that is followed by another one."""
_TAIL = 4096
# Bytes of the log that are read, so that a long crash dump can be shortened first.
_READ = 32 * 1024


class WorldFailure(TerminalRepr):
    """Failure of a world: first the finding, then the culprit's traceback, then one line for each rank."""

    def __init__(
        self, test: TestCase, result: TestResult, original: object, results_dir: Path, again: Sequence[str]
    ) -> None:
        self.result = result
        self.again = again
        self.original = original
        self.logs_in = f"{short_path(results_dir)}/"
        self.tail = _tail_of(result, results_dir)
        # junitxml and the short summary of the terminal take the message of a failure from this attribute.
        self.reprcrash = ReprFileLocation(test.file, test.line, result.message)

    def toterminal(self, tw: TerminalWriter) -> None:
        """Write the message and pytest's own account of the failure; pytest calls this for its list of failures."""
        tw.line(self.result.message, red=True, bold=True)
        if isinstance(self.original, TerminalRepr):
            tw.line()
            self.original.toterminal(tw)
        elif self.result.details:
            tw.line()
            tw.line(self.result.details)
        for line in describe_plugins(self.result):
            tw.line(line)
        if self.result.ranks:
            tw.sep("-", "ranks")
        for line in describe_ranks(self.result, logs_in=self.logs_in):
            tw.line(line)
        if self.tail:
            tw.sep("-", f"end of the log of rank {_speaker(self.result)}")
            tw.line(self.tail)
        if self.again:
            tw.line()
        for line in self.again:
            tw.line(line, cyan=True)


def _speaker(result: TestResult) -> int:
    return result.culprit if result.culprit is not None else 0


def reports_of(
    item: pytest.Item, test: TestCase, judged: TestJudged, results_dir: Path, again: Sequence[str] = ()
) -> list[pytest.TestReport]:
    """Return the reports of one test: those of the rank that represents it, with disttest's finding on a failure."""
    result = judged.result
    reports = [_load(item.config, text) for text in judged.reports]
    if result.outcome.is_bad:
        reports = _accuse(reports, item, test, result, results_dir, again)
    elif not _say(reports, result.outcome):
        reports = _good_reports(item, result)
    if result.outcome is Outcome.PASSED and _shows_passes(item.config):
        whole = (report for report in reports if report.when == "call" and not hasattr(report, "context"))
        next(whole).sections = _printed(result, results_dir)
    # pytest's junitxml completes a test at the report of its tear-down.
    if not any(report.when == "teardown" for report in reports):
        reports.append(_made_up(item, "teardown", "passed", None))
    return reports


def _shows_passes(config: pytest.Config) -> bool:
    """Whether pytest will show the output of passed tests: ``-rP``, or ``-rA``, which includes it."""
    # The attribute is missing with -p no:terminal.
    has_terminal = hasattr(config.option, "reportchars")
    return has_terminal and "P" in getreportopt(config)


def _printed(result: TestResult, results_dir: Path) -> list[tuple[str, str]]:
    """Return the output of each rank, by title."""
    printed = ((record.rank, _end_of(record.log, results_dir)) for record in result.ranks)
    return [(f"Captured output of {rank_name(rank)}", text) for rank, text in printed if text]


def _say(reports: Sequence[pytest.TestReport], outcome: Outcome) -> bool:
    """Whether the reports of a test that did not fail show its outcome, so that every reporter of pytest agrees."""
    whole = [report for report in reports if not hasattr(report, "context")]
    if outcome is Outcome.PASSED and not any(report.when == "call" for report in whole):
        return False
    return not any(r.failed for r in reports) and any(outcome_of(r) is outcome for r in whole)


def _good_reports(item: pytest.Item, result: TestResult) -> list[pytest.TestReport]:
    """Build reports of a test whose ranks sent none that show its outcome."""
    if not result.outcome.has_run:
        return skip_reports(item, result.message)
    # pytest reports an expected failure as a skip with the attribute `wasxfail`, and an unexpected pass as a
    # pass with it.
    outcome = "skipped" if result.outcome is Outcome.XFAILED else "passed"
    report = _made_up(item, "call", outcome, None, duration_s=result.duration_s)
    if result.outcome is not Outcome.PASSED:
        report.wasxfail = result.message
    return [report]


def skip_reports(item: pytest.Item, reason: str) -> list[pytest.TestReport]:
    """Build the reports of a test that was skipped before any process started."""
    _, line, _ = item.location
    longrepr = (str(item.path), (line or 0) + 1, f"Skipped: {reason}")
    return [_made_up(item, "setup", "skipped", longrepr), _made_up(item, "teardown", "passed", None)]


def rerun_reports(
    item: pytest.Item, test: TestCase, judged: TestJudged, results_dir: Path
) -> list[pytest.TestReport]:
    """Build the report of a failure that does not count yet: neither passed nor failed, as in pytest-rerunfailures."""
    failure = WorldFailure(test, judged.result, None, results_dir, ())
    return [_made_up(item, "call", RERUN, failure, duration_s=judged.result.duration_s)]


def late_reports(
    item: pytest.Item, test: TestCase, result: TestResult, results_dir: Path, again: Sequence[str] = ()
) -> list[pytest.TestReport]:
    """Build the report of a rank that died after its test had been reported as good."""
    failure = WorldFailure(test, result, None, results_dir, again)
    return [_made_up(item, "teardown", "failed", failure)]


def report_warnings(item: pytest.Item, result: TestResult) -> None:
    """Add the warnings of ranks to pytest's summary of warnings."""
    for warning, ranks in warnings_by_rank(result).items():
        message = warnings.WarningMessage(
            message=_category(warning.category)(warning_text(warning, ranks)),
            category=_category(warning.category),
            filename=warning.file,
            lineno=warning.line,
        )
        told = {"warning_message": message, "when": "runtest", "nodeid": item.nodeid, "location": None}
        # pluggy refuses a plain call of a historic hook.
        item.ihook.pytest_warning_recorded.call_historic(kwargs=told)


def _category(name: str) -> type[Warning]:
    """Return the class of a warning, or a new class of its name if this process does not know it."""
    module, _, own = name.rpartition(".")
    # The module is not imported for this: it may exist in the ranks only, and its import would run code of
    # the tests here.
    found = getattr(sys.modules.get(module), own, None)
    if isinstance(found, type) and issubclass(found, Warning) and found.__init__ is Warning.__init__:
        # A class with another __init__ may not accept a single text.
        return found
    return type(own, (UserWarning,), {"__module__": module})


def masked_report(config: pytest.Config, report: pytest.TestReport) -> pytest.TestReport:
    """Mask a report, including the values that its output asks to mask."""
    for _, content in sections_of(report):
        outgoing.learn(content.encode("utf-8", "surrogatepass"))
    if not outgoing.active:
        return report
    data = serialisable(report, config)
    # The id stays as it is: plugins of pytest, `--lf` among them, compare it with the ids of items.
    hidden = {**masked(data), "nodeid": report.nodeid}
    return report if hidden == data else _from_data(config, hidden)


def _load(config: pytest.Config, text: str) -> pytest.TestReport:
    return _from_data(config, json.loads(text))


def _from_data(config: pytest.Config, data: dict[str, Any]) -> pytest.TestReport:
    # JSON has no tuples, and pytest requires them here.
    data["location"] = tuple(data["location"])
    if isinstance(data["longrepr"], list):
        data["longrepr"] = tuple(data["longrepr"])
    for name in ("sections", "user_properties"):
        data[name] = [tuple(pair) if isinstance(pair, list) else pair for pair in data[name]]
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=data)
    return report


def _accuse(
    reports: Sequence[pytest.TestReport],
    item: pytest.Item,
    test: TestCase,
    result: TestResult,
    results_dir: Path,
    again: Sequence[str],
) -> list[pytest.TestReport]:
    """Attach the finding to the report that decided; build a report if the rank could not send one."""
    kept = list(reports)
    decided = next((r for r in kept if r.failed and not hasattr(r, "context")), None)
    # If a rank is the culprit, the main process's own traceback only shows that it waited.
    waited = test.kind is not WorldKind.RANKS and result.culprit is not None
    original = decided.longrepr if decided and not waited else None
    failure = WorldFailure(test, result, original, results_dir, again)
    if decided is not None:
        decided.longrepr = failure
        # pytest would count a later skip as the outcome, and `--lf` would forget the failure.
        return [r for r in kept if not (r.skipped and r.when == "teardown")]
    when = "call" if result.outcome is Outcome.FAILED else result.phase
    # pytest expects at most one report for each phase of a test.
    kept = [r for r in kept if r.passed and r.when != when and r.when != "teardown"]
    return [*kept, _made_up(item, when, "failed", failure, duration_s=result.duration_s)]


def _made_up(
    item: pytest.Item, when: str, outcome: str, longrepr: Any, *, duration_s: float = 0.0
) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,  # type: ignore[arg-type]
        longrepr=longrepr,
        when=when,  # type: ignore[arg-type]
        duration=duration_s,
    )


def _tail_of(result: TestResult, results_dir: Path) -> str:
    """Return the end of the representing rank's output, without stacks (shown elsewhere) and with short crash dumps."""
    return _end_of(result.ranks[_speaker(result)].log, results_dir) if result.ranks else ""


def _end_of(log: str, results_dir: Path) -> str:
    try:
        # Opened component by component and without links: a test can put a link to any file in the place of
        # its log.
        with os.fdopen(Tree(results_dir).open(log), "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _READ))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    text = without_stacks(text)
    return f"…\n{text[-_TAIL:]}" if len(text) > _TAIL or (size > _READ and text) else text
