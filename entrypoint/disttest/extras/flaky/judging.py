"""Keeps a failure of a test in quarantine from failing the run. The failure stays in the message and in the details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from disttest.extras.flaky.hooks import NAME
from disttest.extras.flaky.quarantine import Entry
from disttest.extras.history.records import QUARANTINED
from disttest.model import Cause, Frozen, Outcome, TestCase, TestResult
from disttest.reports.text import one_line


class InQuarantine(Frozen):
    """The entry of a test, in the record of the run."""

    owner: str
    reason: str
    expires: str
    link: str = ""
    expired: bool = False

    @property
    def words(self) -> str:
        """``in quarantine until 2026-12-31 (ann: races with the logger)``."""
        return f"{QUARANTINED} until {self.expires} ({self.owner}: {self.reason})"


def quarantine_of(test: TestCase) -> InQuarantine | None:
    """The entry of a test; None if it has none."""
    data: Mapping[str, Any] | None = test.data.get(NAME)
    try:
        return msgspec.convert(data, InQuarantine) if data else None
    except msgspec.ValidationError:  # of a later version
        return None


def hidden(result: TestResult, entry: InQuarantine) -> TestResult:
    """The result of a test in quarantine: a failure counts as expected. A broken machine is no flaw of the test."""
    own = result.outcome.is_bad and result.cause in (None, Cause.TEST)
    if entry.expired or not own:
        return result
    # A test with a note can be opened on the page, where its ranks and logs are.
    notes = (*result.notes, f"its failure does not count until {entry.expires}, since it is in quarantine")
    message = f"{one_line(entry.words)}: {result.message}"
    return msgspec.structs.replace(result, outcome=Outcome.XFAILED, cause=None, message=message, notes=notes)


def hide_report(report: pytest.TestReport, entry: InQuarantine) -> None:
    """The same for a report of pytest, of a test that runs in the controller."""
    if entry.expired or not report.failed:
        return
    # Some have no reprcrash, such as errors of fixtures (FixtureLookupErrorRepr). The last line of their text
    # says most.
    crash = getattr(report.longrepr, "reprcrash", None)
    message = getattr(crash, "message", "") or str(report.longrepr or "").strip().rpartition("\n")[2]
    # As pytest itself reports an expected failure (_pytest/skipping.py): the outcome skipped, with the
    # attribute wasxfail.
    report.outcome = "skipped"
    report.wasxfail = f"{one_line(entry.words)}: {one_line(message)}"


def data_of(entry: Entry, *, expired: bool) -> InQuarantine:
    """The entry for the record of the run."""
    return InQuarantine(
        owner=entry.owner,
        reason=entry.reason,
        expires=entry.expires.isoformat(),
        link=entry.link,
        expired=expired,
    )


def notes_on(tests: Sequence[TestCase]) -> list[str]:
    """Lines before the first test: entries that have expired."""
    gone = {test.nodeid: entry for test in tests if (entry := quarantine_of(test)) and entry.expired}
    return [
        f"the quarantine of {nodeid} ended on {entry.expires}, its failures count; {entry.owner} has to repair it, or to "
        "remove the entry"
        for nodeid, entry in gone.items()
    ]
