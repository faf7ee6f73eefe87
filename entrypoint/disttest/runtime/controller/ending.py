"""End a run without a command around it: clean up, conclude and report, reading the journal once.

At its end the interpreter waits for threads and processes that are not daemons, and runs exit handlers. Those that keep
the pytest process alive are named, with the tests that started them.
"""

from __future__ import annotations

import atexit
import multiprocessing
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import NoReturn, cast

import msgspec
import pytest

from disttest.errors import JournalError, PluginError, ReportError
from disttest.outgoing import outgoing
from disttest.reports.write import write_reports
from disttest.results.conclusion import Conclusion, Process, conclude, facts_of, join_exit_codes
from disttest.results.directory import ResultsDirectory
from disttest.results.events import AnyEvent
from disttest.results.fold import Folding, RunResult, fold
from disttest.results.journal import Journal
from disttest.results.relay import hide_what_was_learned
from disttest.runtime.controller.run_recorder import RunRecorder
from disttest.runtime.controller.run_watch import RunWatch, clean_up

# pytest prints the module and the name of the class before the reason: `! _pytest.outcomes.Exit: REASON !`. Users know
# neither.
_Exit = type("disttest", (pytest.exit.Exception,), {"__module__": "builtins"})


def leave_session(reason: str, exit_code: int) -> NoReturn:
    """End pytest's session as ``pytest.exit`` does, which prints ``! disttest: REASON !``."""
    raise _Exit(reason, exit_code)


def end_run(
    recorder: RunRecorder,
    directory: ResultsDirectory | None,
    watches: Mapping[str, RunWatch],
    *,
    exit_code: int,
    reason: str,
    notes: Iterable[str] = (),
    listed: bool,
) -> int:
    """Write the end of the run into the journal, and write the reports.

    Args:
        recorder: recorder of the run.
        directory: results directory, released afterwards; None if no reports are wanted.
        watches: plugin name -> its watch over the run.
        exit_code: exit code of pytest.
        reason: why the run ended early; empty if it did not.
        notes: further notes on the run.
        listed: whether tests were only collected, so that there is nothing to conclude or report.

    Returns:
        The exit code of the run.
    """
    journal = recorder.journal
    # First, because the end of the run and the reports need a journal and a directory. A test or a user may
    # have removed them.
    restored = directory.restore(journal) if directory is not None else ""
    with closing(_Reading(journal)) as reading:
        try:
            if restored:
                _say(restored)
                recorder.noted(restored)
            for note in notes:
                recorder.noted(note)
            # Before a failing watch counts, as in the command: afterwards the gravest of both codes decides.
            if not listed:
                exit_code, reason = _concluded(reading.result(), exit_code, reason)
            try:
                for nodeid, message in clean_up(watches, lambda: reading.result().attempts):
                    recorder.noted(message, nodeid)
            except PluginError as error:
                recorder.noted(str(error))
                joined = join_exit_codes([exit_code, error.exit_code], something_ran=True)
                if joined != exit_code:
                    exit_code, reason = joined, reason or str(error)
            recorder.run_finished(exit_code, reason)
        except JournalError as error:
            exit_code = error.exit_code
            _say(str(error))
        if directory is not None:
            failure = 0 if listed else _report(reading, directory)
            # After the reports: another run may claim the directory as soon as its lock is free.
            directory.release()
            # A run that has failed keeps its code: CI must see the tests before the missing report.
            exit_code = exit_code or failure
    return exit_code


class _Reading:
    """A growing journal, each event read once."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._follower = journal.follow()
        self._folding = Folding()
        # Number of unwritten events (the disk was full) that are folded already.
        self._kept = 0

    def result(self) -> RunResult:
        """Return the result of the run so far."""
        unwritten = self._journal.unwritten[self._kept :]
        self._kept += len(unwritten)
        for event in (*self._follower.new_events(), *cast("list[AnyEvent]", unwritten)):
            self._folding.handle(event)
        return self._folding.result()

    def anew(self) -> RunResult:
        """Return the result, read again from the beginning."""
        return fold(self._journal.events())

    def close(self) -> None:
        """Stop reading."""
        self._follower.let_go()


def _concluded(run: RunResult, exit_code: int, reason: str) -> Conclusion:
    process = Process(exit_code=exit_code, ended=f"exit code {exit_code}")
    return conclude(msgspec.structs.replace(facts_of(run), process=process, reason=reason, empty=False))


def _report(reading: _Reading, directory: ResultsDirectory) -> int:
    """Write the reports; return the exit code of a failure, otherwise 0."""
    hide_what_was_learned(directory.path)
    # Secrets learned late appear unmasked in the events read so far.
    run = reading.anew() if outgoing.active else reading.result()
    try:
        write_reports(run, directory.path)
    except ReportError as error:
        _say(str(error))
        return error.exit_code
    return 0


def _say(message: str) -> None:
    print(f"disttest: {message}", file=sys.stderr)  # noqa: T201


class ExitBlockers:
    """A pytest plugin that records which ordinary test started a thread, a process or an exit handler."""

    def __init__(self) -> None:
        # Thread or process -> the test that started it; empty if it existed before.
        self._tests = dict.fromkeys(_waited_for(), "")
        # Tests that registered exit handlers.
        self._registering: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Compare the state before and after a test."""
        # CPython has no public way to count exit handlers (Python 3.11 to 3.13).
        handlers = atexit._ncallbacks()  # noqa: SLF001
        result = yield
        self._tests = {each: self._tests.get(each, item.nodeid) for each in _waited_for()}
        if atexit._ncallbacks() > handlers:  # noqa: SLF001
            self._registering.append(item.nodeid)
        return result

    def describe(self) -> str:
        """Describe the objects that the interpreter is about to wait for."""
        found = [f"{_name(each)}{_started_by(self._tests.get(each, ''))}" for each in _waited_for()]
        if not found and self._registering:
            found = [f"an exit handler that {' or '.join(self._registering)} registered"]
        return ", ".join(found) or "an exit handler that no test has registered"


_Waited = threading.Thread | multiprocessing.process.BaseProcess


def _waited_for() -> list[_Waited]:
    threads = [thread for thread in threading.enumerate() if not thread.daemon]
    # multiprocessing joins its non-daemonic children in an exit handler.
    processes = [child for child in multiprocessing.active_children() if not child.daemon]
    return [*(thread for thread in threads if thread is not threading.main_thread()), *processes]


def _name(waited: _Waited) -> str:
    kind = "thread" if isinstance(waited, threading.Thread) else "process"
    return f"the {kind} {waited.name}"


def _started_by(test: str) -> str:
    return f" (started by {test})" if test else ""
