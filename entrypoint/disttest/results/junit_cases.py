"""Read the test cases of a JUnit file of any tool."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from xml.parsers import expat

from disttest.model import Frozen, Outcome


class JUnitCase(Frozen):
    """A ``testcase`` element."""

    line: int
    name: str
    """``classname::name``."""
    file: str
    at_s: float
    """Start of its suite in seconds since the epoch; 0 if the file does not contain it."""
    time: str
    """The duration as the file contains it; any text."""
    outcome: Outcome
    message: str = ""
    """Message of the first failure or error, otherwise of the skip."""
    failed_before: int = 0
    """Attempts that failed before the last one (``rerunFailure``, ``flakyFailure`` and the like)."""


def read_junit(path: Path) -> Iterator[JUnitCase | str]:
    """Yield the cases of a file, and warnings as text. A broken file yields the cases before the break."""
    yield from _JUnit(path).read()


_OUTCOMES = {"failure": Outcome.FAILED, "error": Outcome.ERROR, "skipped": Outcome.SKIPPED}
_EARLIER = ("flakyFailure", "flakyError", "rerunFailure", "rerunError")


class _JUnit:
    """Collects the test cases of a file while expat parses it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Files may come from anywhere. expat loads no external entity, and since 2.4.1 it limits the
        # expansion of internal ones.
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._at_s = 0.0
        self._case: tuple[dict[str, str], int] | None = None
        self._outcome, self._message, self._failed_before = Outcome.PASSED, "", 0
        self.found: list[JUnitCase | str] = []

    def read(self) -> list[JUnitCase | str]:
        """Return all cases, and a warning if the file ends early."""
        with self._path.open("rb") as file:
            try:
                self._parser.ParseFile(file)
            except expat.ExpatError as error:
                reason = expat.ErrorString(error.code)
                self.found.append(f"{self._path}:{error.lineno}: the rest is skipped, not XML: {reason}")
        return self.found

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "testsuite":
            self._at_s = _timestamp(attributes.get("timestamp", ""))
        elif name == "testcase":
            self._case = attributes, self._parser.CurrentLineNumber
            self._outcome, self._message, self._failed_before = _outcome(attributes), "", 0
        # The first failure or error counts. An element after it cannot turn the case into a skip.
        elif name in _OUTCOMES and not self._outcome.is_bad:
            self._outcome, self._message = _OUTCOMES[name], attributes.get("message", "")
        elif name in _EARLIER:
            self._failed_before += 1

    def _end(self, name: str) -> None:
        if name != "testcase" or self._case is None:
            return
        attributes, line = self._case
        self.found.append(
            JUnitCase(
                line=line,
                name=f"{attributes.get('classname', '')}::{attributes.get('name', '')}",
                file=attributes.get("file", ""),
                at_s=self._at_s,
                time=attributes.get("time", "0"),
                outcome=self._outcome,
                message=self._message,
                failed_before=self._failed_before,
            )
        )


def _outcome(attributes: dict[str, str]) -> Outcome:
    """Return the outcome of a case without a failure. GoogleTest and CTest mark cases that did not run by attributes."""
    left_out = attributes.get("status") in ("notrun", "disabled") or attributes.get("result") == "suppressed"
    return Outcome.SKIPPED if left_out else Outcome.PASSED


def _timestamp(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    # Many tools write local time without an offset. UTC is wrong by 14 hours at most, which
    # `durations.CLOCK_SKEW_S` allows.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
