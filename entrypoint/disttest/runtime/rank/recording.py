"""Collect the warnings and properties of one test, in a rank or in the pytest process."""

from __future__ import annotations

import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from _pytest.junitxml import xml_key

from disttest.model import FactKind, Recorded, RecordedFact, RecordedWarning
from disttest.runtime.messages.portable import sections_of, text_of
from disttest.runtime.messages.protocol import Channel, TestRecorded, clean_text

# Warnings and properties kept for one test in one process.
_MOST = 100
_LONGEST = 8192
# Sections that repeat the log of a rank.
_CAPTURED = ("Captured stdout", "Captured stderr", "Captured log")


class TestRecorder:
    """The warnings and properties of the running test."""

    __test__ = False

    def __init__(self) -> None:
        self._warnings: dict[RecordedWarning, None] = {}
        self._facts: dict[RecordedFact, None] = {}

    def take(self) -> Recorded:
        """Return everything since the last call."""
        recorded = Recorded(warnings=tuple(self._warnings), facts=tuple(self._facts))
        self._warnings, self._facts = {}, {}
        return recorded

    def send(self, channel: Channel) -> None:
        """Send everything since the last call. It is not urgent, so it travels with the next message."""
        if (recorded := self.take()) != Recorded():
            channel.hold(TestRecorded(recorded=recorded))

    def warn(self, warning: warnings.WarningMessage) -> None:
        """Keep a warning; equal ones are kept once."""
        category = warning.category
        self._keep_warning(
            f"{category.__module__}.{category.__qualname__}",
            text_of(warning.message),
            warning.filename,
            warning.lineno,
        )

    def note_thread(self, arguments: threading.ExceptHookArgs) -> None:
        """Keep an exception that ended a thread, in pytest's wording."""
        name = arguments.thread.name if arguments.thread else "unknown"
        trace = "".join(traceback.format_exception(arguments.exc_value)) if arguments.exc_value else ""
        self._keep_warning(
            "pytest.PytestUnhandledThreadExceptionWarning", f"Exception in thread {name}\n\n{trace}", "", 0
        )

    def note_unraisable(self, arguments: Any) -> None:
        """Keep an exception that could not be raised, for example in ``__del__``, in pytest's wording."""
        heading = arguments.err_msg or "Exception ignored in"
        trace = "".join(traceback.format_exception(arguments.exc_value)) if arguments.exc_value else ""
        message = f"{heading}: {text_of(arguments.object)}\n\n{trace}"
        self._keep_warning("pytest.PytestUnraisableExceptionWarning", message, "", 0)

    def _keep_warning(self, category: str, message: str, file: str, line: int) -> None:
        # A warning in a training loop appears thousands of times with different texts.
        if len(self._warnings) < _MOST:
            text = clean_text(message)[:_LONGEST]
            self._warnings[
                RecordedWarning(category=category, message=text, file=clean_text(file), line=line)
            ] = None

    def add(self, kind: FactKind, name: object, value: object) -> None:
        """Keep a property."""
        if len(self._facts) < _MOST:
            fact = RecordedFact(
                kind=kind,
                name=clean_text(text_of(name))[:_LONGEST],
                value=clean_text(text_of(value))[:_LONGEST],
            )
            self._facts[fact] = None

    def add_report(self, report: pytest.TestReport) -> None:
        """Keep the properties and sections of a report; those of earlier phases are known already."""
        for pair in report.user_properties:
            if isinstance(pair, (tuple, list)) and len(pair) == 2:
                self.add(FactKind.PROPERTY, *pair)
        for title, content in sections_of(report) if report.sections else ():
            # They are in the log already, and would be sent again with each phase.
            if not title.startswith(_CAPTURED):
                self.add(FactKind.SECTION, title, content)

    def stand_in_for_junit(self, config: pytest.Config) -> None:
        """Make ``record_xml_attribute`` and ``record_testsuite_property`` work without ``--junitxml``."""
        config.stash[cast("pytest.StashKey[_Junit]", xml_key)] = _Junit(self)


class _Junit:
    """The part of pytest's ``LogXML`` that fixtures use."""

    # pytest's fixtures warn about any other family but "legacy".
    family = "xunit1"

    def __init__(self, recorder: TestRecorder) -> None:
        self._recorder = recorder

    def __bool__(self) -> bool:
        """Return False: pytest unregisters a true value at its end, and this is not a registered plugin."""
        return False

    def node_reporter(self, _report: object) -> _Junit:
        """Return the reporter of a test."""
        return self

    def add_attribute(self, name: str, value: object) -> None:
        """Implement ``record_xml_attribute``."""
        self._recorder.add(FactKind.ATTRIBUTE, name, value)

    def add_global_property(self, name: str, value: object) -> None:
        """Implement ``record_testsuite_property``."""
        self._recorder.add(FactKind.SUITE_PROPERTY, name, value)


@contextmanager
def recording_warnings(recorder: TestRecorder) -> Iterator[None]:
    """Record warnings where pytest does not run the test: in a rank that a test class started."""
    before = threading.excepthook, sys.unraisablehook

    def in_thread(arguments: threading.ExceptHookArgs) -> None:
        recorder.note_thread(arguments)
        # The rank's log shows the traceback as it does without recording.
        threading.__excepthook__(arguments)

    def unraisable(arguments: Any) -> None:
        recorder.note_unraisable(arguments)
        sys.__unraisablehook__(arguments)

    with warnings.catch_warnings():
        warnings.showwarning = lambda *given: recorder.warn(warnings.WarningMessage(*given))
        threading.excepthook, sys.unraisablehook = in_thread, unraisable
        try:
            yield
        finally:
            threading.excepthook, sys.unraisablehook = before
