"""``ctrf.json``: the run in the Common Test Report Format (https://ctrf.io), which many dashboards read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from disttest.model import Outcome, TestResult
from disttest.reports.location import Repository
from disttest.reports.text import clean, shorten
from disttest.results.fold import CollectionError, RunResult, TestOutcome

FILE_NAME = "ctrf.json"
SPEC_VERSION = "0.0.0"
MAX_TEXT = 20_000
"""Length limit of one message or trace, in characters. junit.xml has the full texts."""

STATUS = {
    Outcome.PASSED: "passed",
    Outcome.XPASSED: "passed",
    Outcome.FAILED: "failed",
    Outcome.ERROR: "failed",
    Outcome.SKIPPED: "skipped",
    Outcome.XFAILED: "skipped",
    Outcome.NOT_RUN: "pending",
}
"""The format has five states; ``rawStatus`` carries disttest's own."""


def ctrf_pieces(run: RunResult) -> Iterator[bytes]:
    """Yield the document in pieces, one for each test, so that a large run is never in memory twice."""
    # Piece by piece: whole documents of 100,000 cases took more memory than the run itself.
    head = {
        "reportFormat": "CTRF",
        "specVersion": SPEC_VERSION,
        "runId": run.run_id or "unknown",
        "generatedBy": "disttest",
    }
    yield (
        _encoded(head)[:-1] + b',"results":{"tool":' + _encoded({"name": "disttest", "version": run.disttest})
    )
    yield b',"summary":' + _encoded(_summary(run)) + b',"tests":['
    comma = b""
    for entry in _entries(run):
        yield comma + b"\n" + _encoded(entry)
        comma = b","
    yield b'\n],"environment":' + _encoded({"osPlatform": run.hardware.platform or "unknown"}) + b"}}\n"


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value)


def _entries(run: RunResult) -> Iterator[dict[str, Any]]:
    yield from (_collection_entry(error, run) for error in run.collection_errors)
    repository = Repository.of(run)
    yield from (_entry(test, repository) for test in run.tests)


def _summary(run: RunResult) -> dict[str, int]:
    counts = Counter(STATUS[test.final.outcome] for test in run.tests)
    counts["failed"] += len(run.collection_errors)
    # The format requires all five counts, also those that disttest never uses.
    states = {name: counts[name] for name in ("passed", "failed", "skipped", "pending", "other")}
    return {
        "tests": sum(counts.values()),
        **states,
        "flaky": len(run.flaky),
        "start": _ms(run.started_at_s),
        "stop": _ms(run.ended_at_s),
        "duration": _ms(run.duration_s),
    }


def _entry(test: TestOutcome, repository: Repository) -> dict[str, Any]:
    result = test.final
    entry = {
        "name": clean(test.test.nodeid),
        "suite": [clean(test.test.suite or test.test.file or "tests")],
        "type": "distributed" if test.test.world else "unit",
        "filePath": clean(repository.relative(test.test.file) or test.test.file),
        "line": test.test.line,
        "retries": len(test.attempts) - 1,
        "flaky": test.flaky,
        **_attempt(result),
        "rawStatus": str(result.outcome),
    }
    if len(test.attempts) > 1:
        entry["retryAttempts"] = [{"attempt": one.attempt, **_attempt(one)} for one in test.attempts[:-1]]
    return entry


def _attempt(result: TestResult) -> dict[str, Any]:
    known: dict[str, Any] = {
        "status": STATUS[result.outcome],
        "duration": _ms(result.duration_s),
        "start": _ms(result.started_at_s),
        "stop": _ms(result.started_at_s + result.duration_s),
    }
    if result.message:
        known["message"] = shorten(clean(result.message), MAX_TEXT)
    if result.details:
        known["trace"] = shorten(clean(result.details), MAX_TEXT)
    logs = [rank for rank in result.ranks if rank.log]
    if logs:
        known["attachments"] = [
            {"name": f"rank {rank.rank}", "contentType": "text/plain", "path": clean(rank.log)}
            for rank in logs
        ]
    return known


def _collection_entry(error: CollectionError, run: RunResult) -> dict[str, Any]:
    return {
        "name": clean(error.nodeid),
        "status": "failed",
        "duration": 0,
        "start": _ms(run.started_at_s),
        "rawStatus": "collection error",
        "message": "could not be collected",
        "trace": shorten(clean(error.message), MAX_TEXT),
    }


def _ms(seconds: float) -> int:
    """Return whole milliseconds; 0 for the infinite times of a broken run."""
    return max(0, round(seconds * 1000)) if abs(seconds) < float("inf") else 0
