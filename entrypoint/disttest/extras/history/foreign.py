"""Read runs from the reports of other tools: JUnit and CTRF."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from disttest.errors import ExitCode, UsageError
from disttest.model import UNREADABLE, Frozen, Hardware, Outcome, TestCase, TestResult
from disttest.planning.timings import is_usable
from disttest.results.fold import RunResult, TestOutcome
from disttest.results.junit_cases import JUnitCase, read_junit

_OUTCOMES = {
    "passed": Outcome.PASSED,
    "failed": Outcome.FAILED,
    "skipped": Outcome.SKIPPED,
    "pending": Outcome.SKIPPED,
    "other": Outcome.ERROR,
}
"""Statuses of the Common Test Report Format (https://ctrf.io)."""


class _Attempt(Frozen):
    name: str
    file: str
    suite: str
    at_s: float
    duration_s: float
    outcome: Outcome
    message: str
    failed_before: int


def read_foreign(path: Path) -> tuple[RunResult, list[str]]:
    """Read the run of a report, with warnings.

    Raises:
        UsageError: it is not a report of a known format, or it has no test.
    """
    data = path.read_bytes()
    head = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    warnings: list[str] = []
    tests = _junit(path, warnings) if head.startswith(b"<") else _ctrf(path, data)
    if not tests:
        raise UsageError(
            f"{path} has no test: give a JUnit file, a CTRF file, or the results directory of a run"
        )
    began_s = min((test.at_s for test in tests if test.at_s > 0), default=path.stat().st_mtime)
    return _run(tests, began_s, hashlib.sha256(data).hexdigest()[:16]), warnings


def _run(tests: Iterable[_Attempt], began_s: float, digest: str) -> RunResult:
    outcomes = tuple(_outcome(test) for test in {test.name: test for test in tests}.values())
    took_s = sum(outcome.final.duration_s for outcome in outcomes)
    failed = any(outcome.final.outcome.is_bad for outcome in outcomes)
    return RunResult(
        run_id=f"report-{digest}",
        argv=(),
        root="",
        hardware=Hardware(cpus=0),
        slots=0,
        disttest="",
        started_at_s=began_s,
        ended_at_s=began_s + took_s,
        exit_code=ExitCode.FAILED if failed else ExitCode.PASSED,
        reason="",
        tests=outcomes,
        collection_errors=(),
        worlds=(),
        notes=(),
    )


def _outcome(test: _Attempt) -> TestOutcome:
    case = TestCase(
        nodeid=test.name,
        slug="",
        classname=test.name.partition("::")[0],
        name=test.name.rpartition("::")[2],
        file=test.file,
        line=1,
        suite=test.suite,
    )
    earlier = (
        TestResult(nodeid=test.name, outcome=Outcome.FAILED, message=test.message),
    ) * test.failed_before
    final = TestResult(
        nodeid=test.name,
        outcome=test.outcome,
        attempt=test.failed_before + 1,
        started_at_s=max(0.0, test.at_s),
        duration_s=test.duration_s if is_usable(test.duration_s) else 0.0,
        message=test.message,
    )
    return TestOutcome(test=case, attempts=(*earlier, final))


def _junit(path: Path, warnings: list[str]) -> list[_Attempt]:
    cases = []
    for case in read_junit(path):
        if isinstance(case, JUnitCase):
            cases.append(_of_junit(case))
        else:
            warnings.append(case)
    return cases


def _of_junit(case: JUnitCase) -> _Attempt:
    try:
        duration_s = float(case.time.replace(",", ""))
    except ValueError:
        duration_s = 0.0
    return _Attempt(
        name=case.name,
        file=case.file,
        suite=case.name.partition("::")[0],
        at_s=case.at_s,
        duration_s=duration_s,
        outcome=case.outcome,
        message=case.message,
        failed_before=case.failed_before,
    )


class _CtrfTest(msgspec.Struct):
    name: str
    status: str
    duration: float = 0.0
    """Duration in milliseconds."""
    start: float = 0.0
    suite: Any = ""
    filePath: str = ""  # noqa: N815 - the name of the format
    message: str = ""
    retries: int = 0
    flaky: bool = False


class _CtrfResults(msgspec.Struct):
    tests: list[_CtrfTest]


class _Ctrf(msgspec.Struct):
    results: _CtrfResults


def _ctrf(path: Path, data: bytes) -> list[_Attempt]:
    try:
        report = msgspec.json.decode(data, type=_Ctrf)
    except UNREADABLE as error:
        raise UsageError(
            f"{path} is not a report of a known format ({error}); give a JUnit file, a CTRF file, or a results directory"
        ) from None
    return [
        _Attempt(
            name=f"{_suite(test)}::{test.name}".removeprefix("::"),
            file=test.filePath,
            suite=_suite(test),
            at_s=test.start / 1000,
            duration_s=test.duration / 1000,
            outcome=_OUTCOMES.get(test.status, Outcome.ERROR),
            message=test.message,
            failed_before=max(test.retries, int(test.flaky)) if test.status == "passed" else test.retries,
        )
        for test in report.results.tests
    ]


def _suite(test: _CtrfTest) -> str:
    """Return the suite of a test, which is a string or a list of strings."""
    parts = test.suite if isinstance(test.suite, list) else [test.suite or ""]
    return " > ".join(map(str, parts))
