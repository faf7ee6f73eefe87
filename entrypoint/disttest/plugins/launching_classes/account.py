"""The part in a rank: it runs a test's body and reports its outcome; exit codes are the cross-check."""

from __future__ import annotations

import functools
import re
import socket
import sys
import threading
import traceback
import unittest
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from disttest.clock import monotonic, sleep
from disttest.model import Outcome, RankEnd, RankRecord
from disttest.outgoing import shorten
from disttest.results.exit_codes import SKIP_MESSAGES
from disttest.results.hang_findings import HARNESS
from disttest.results.headline import headline, raised_line
from disttest.results.verdict import is_consequence
from disttest.runtime.messages.portable import text_of
from disttest.runtime.messages.protocol import Channel, PhaseEnded, Raised, RunStop, clean_text
from disttest.runtime.messages.raised import describe_held_back, describe_raised, stop_of
from disttest.runtime.rank.rank_test import PostMortem
from disttest.runtime.rank.waits import awaited_ranks

_HARNESS = re.compile(
    rf"{HARNESS}|/(torch/testing/_internal/common_(distributed|utils|device_type|fsdp)|disttest/testing/\w+(/\w+)*)\.py$"
)
"""Files whose frames call the test, or are between its assertion and the exception."""


def describe(error: BaseException) -> tuple[str, str]:
    """Return headline and traceback of an exception. Frames of torch's harness and of disttest are removed."""
    trace = traceback.TracebackException.from_exception(error)
    _fold(trace)
    # The `__str__` of a test's exception may raise.
    name, text = type(error).__name__, text_of(error)
    return headline(f"{name}: {text}") if text.strip() else _bare(name, trace), "".join(trace.format())


def _bare(name: str, trace: traceback.TracebackException) -> str:
    """Return the headline of an assertion without a message: the asserted line."""
    line = trace.stack[-1].line if trace.stack else ""
    return f"{name}: {line}" if line else name


def _fold(trace: traceback.TracebackException | None) -> None:
    seen: set[int] = set()
    while trace is not None and id(trace) not in seen:
        seen.add(id(trace))
        own = [frame for frame in trace.stack if not _HARNESS.search(frame.filename)]
        if own:  # otherwise the harness itself has failed
            trace.stack = traceback.StackSummary.from_list(own)
        trace = trace.__cause__ or trace.__context__


def thread_records(
    size: int, raised: Sequence[tuple[int, BaseException]], *, log: str
) -> tuple[RankRecord, ...]:
    """Return the records of ranks that were threads of one process.

    Args:
        size: number of threads.
        raised: rank and exception of those that did not return, in order of time. After the first of them, torch wakes
            the threads that wait for it by a SystemExit with a text.
        log: log of the process that they share.
    """
    # torch ends a waiting thread by `sys.exit("Test termination event occurs.")`; the first entry cannot be
    # one.
    wakes = any(_wakes(error) for _, error in raised[1:])
    by_rank: dict[int, tuple[int, BaseException]] = {}
    for order, (rank, error) in enumerate(raised):
        # A thread that does not end in time has a second entry, from `_join_threads`.
        by_rank.setdefault(rank, (order, error))
    return tuple(_thread_record(rank, by_rank.get(rank), log, wakes=wakes) for rank in range(size))


def _wakes(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and isinstance(error.code, str)


def _thread_record(
    rank: int, raised: tuple[int, BaseException] | None, log: str, *, wakes: bool
) -> RankRecord:
    passed = RankRecord(rank=rank, end=RankEnd.REPORTED, outcome=Outcome.PASSED, phase="call", log=log)
    if raised is None:
        return passed
    order, error = raised
    if isinstance(error, unittest.SkipTest):
        return msgspec.structs.replace(passed, outcome=Outcome.SKIPPED, message=text_of(error))
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code in SKIP_MESSAGES:
        return msgspec.structs.replace(passed, outcome=Outcome.SKIPPED, message=SKIP_MESSAGES[error.code])
    # The first to leave while others wait for it has not finished the test, whatever its code.
    if isinstance(error, SystemExit) and not error.code and not (wakes and not order):
        return passed
    if _wakes(error) and order:
        message = "was woken from its wait, because another thread had failed"
        return RankRecord(rank=rank, end=RankEnd.KILLED, phase="call", message=message, woken=True, log=log)
    message, details = describe(error)
    return msgspec.structs.replace(
        passed,
        outcome=Outcome.FAILED,
        message=clean_text(message)[:2000],
        details=shorten(clean_text(details)),
        failed_after_s=order * 1e-6,  # only the order is known
    )


class Account:
    """The rank's report of its test: the exception of the method, whatever exit code follows from it."""

    def __init__(self, channel: Channel, post_mortem: PostMortem | None = None) -> None:
        """Create the report of one test.

        Args:
            channel: channel to the main process.
            post_mortem: shows a user where the test has failed, while the limits of the world are suspended.
        """
        self.post_mortem = post_mortem
        self.channel = channel
        self._raised: BaseException | None = None
        self._raised_at_s = 0.0
        self._began_s = monotonic()
        self._reported = False

    def watch(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method so that its exception is recorded."""

        @functools.wraps(method)
        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except BaseException as error:
                self.note(error)
                raise

        return watched

    def note(self, error: BaseException) -> None:
        """Record an exception that the test has just raised."""
        self._raised, self._raised_at_s = error, monotonic()

    def report_text(self, text: str) -> None:
        """Report a failure that the class itself announced; the text is a traceback."""
        if self._failure() is not None:
            self.report_failure()
            return
        self._send(Outcome.FAILED, raised_line(text) or "failed", text)

    def report_failure(self) -> None:
        """Report the recorded exception as the test's failure."""
        error = self._raised
        assert error is not None
        # A first report without any code of the test. Rendering calls its `__repr__` methods, which may
        # wait for other ranks: then the test ended as a deadlock, and its exception appeared nowhere.
        if self.post_mortem is None:
            raised = describe_raised(error)
            self._send(
                Outcome.FAILED,
                raised.message,
                raised.details,
                at_s=self._raised_at_s,
                unrendered=True,
                held_back=describe_held_back(error),
            )
        message, text = describe(error)

        def report() -> tuple[str, str]:
            self._send(Outcome.FAILED, message, text, at_s=self._raised_at_s, stop=stop_of(error))
            return message, text

        if self.post_mortem is None:
            report()
        else:
            self.post_mortem(error, report)

    def report_end(self, code: int, skips: Mapping[int, str]) -> None:
        """Report the end of the test before the rank exits with this code."""
        # torch sends the traceback through the pipe first, and exits with code 10 afterwards.
        if self._reported:
            return
        if code == 0:
            self._send(Outcome.PASSED)
        elif self._failure() is not None:
            self.report_failure()
        elif code in skips and isinstance(self._raised, unittest.SkipTest):
            self._send(Outcome.SKIPPED, text_of(self._raised))
        elif code in skips:
            self._send(Outcome.SKIPPED, skips[code])

    def report_kept(self, error: BaseException | None, skips: Mapping[int, str]) -> None:
        """Report the end of one test of a rank that stays."""
        if error is None:
            self._send(Outcome.PASSED)
        elif isinstance(error, unittest.SkipTest):
            self._send(Outcome.SKIPPED, text_of(error))
        # `sys.exit` accepts any object, such as a list, which cannot be a key.
        elif isinstance(error, SystemExit) and isinstance(error.code, int) and error.code in skips:
            self._send(Outcome.SKIPPED, skips[error.code])
        else:
            self.note(error)
            self.report_failure()

    def _failure(self) -> BaseException | None:
        harmless = (unittest.SkipTest, SystemExit)
        return None if isinstance(self._raised, harmless) else self._raised

    def _send(
        self,
        outcome: Outcome,
        message: str = "",
        details: str = "",
        *,
        at_s: float | None = None,
        unrendered: bool = False,
        stop: RunStop | None = None,
        held_back: Raised | None = None,
    ) -> None:
        self._reported = True
        now_s = monotonic()
        self.channel.send(
            PhaseEnded(
                phase="call",
                outcome=outcome,
                duration_s=now_s - self._began_s,
                ended_at_s=now_s if at_s is None else at_s,
                message=clean_text(message)[:2000],
                details=shorten(clean_text(details)),
                # Once, with the first report. These ranks were noted when the wait failed.
                because_of=awaited_ranks() if unrendered and is_consequence(message) else (),
                unrendered=unrendered,
                stop=stop,
                held_back=held_back,
            )
        )


class ChannelPipe:
    """A rank's pipe to the main process with the interface that torch's harness expects.

    Sent text becomes a report. Nothing is ever received, because stacks are taken without the rank's help.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        # torch's listener thread passes the pipe to `multiprocessing.connection.wait`, which needs a
        # descriptor.
        self._ours, self._theirs = socket.socketpair()
        self.closed = False

    def fileno(self) -> int:
        """Return a descriptor that never becomes readable before it is closed."""
        return self._ours.fileno()

    def send(self, text: object) -> None:
        """Report the failure that the test's class announces."""
        self._account.report_text(text if isinstance(text, str) else repr(text))

    def note(self, error: BaseException) -> None:
        """Record an exception that the test has just raised."""
        self._account.note(error)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Return False: nothing ever arrives."""
        if timeout:
            sleep(timeout)
        return False

    def recv(self) -> object:
        """Raise EOFError: nothing ever arrives."""
        raise EOFError

    def close(self) -> None:
        """Close the pipe; repeated calls are harmless."""
        self.closed = True
        self._ours.close()
        self._theirs.close()


def run_to_exit_code(
    body: Callable[[], object],
    account: Account,
    # As multiprocessing's own bootstrap does, which joins all threads before it exits (Python 3.11 to 3.13).
    end_threads: Callable[[], object] = threading._shutdown,  # type: ignore[attr-defined]  # noqa: SLF001
) -> int:
    """Run the body as ``multiprocessing`` runs a process and return its exit code. Its own threads are joined."""
    try:
        body()
        end_threads()
    except SystemExit as request:
        return _as_code(request.code)
    except BaseException as error:  # noqa: BLE001  # last frame of the rank
        account.note(error)
        # Into the log of the rank, as multiprocessing does.
        traceback.print_exc()
        return 1
    return 0


def _as_code(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        # The kernel keeps eight bits of an exit code: `sys.exit(256)` is 0 for the parent.
        return value & 0xFF
    print(value, file=sys.stderr)  # noqa: T201  # as Python does at exit
    return 1
