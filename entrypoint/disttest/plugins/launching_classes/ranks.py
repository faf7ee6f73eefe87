"""The part in a hosted rank: it prepares the process, runs the test's body, and reports its outcome."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from disttest.descriptors import point_output_at
from disttest.plugins.launching_classes.account import Account, ChannelPipe, run_to_exit_code
from disttest.runtime.messages.protocol import Channel, TestDone
from disttest.runtime.rank import flight, state_snapshot, watchdog
from disttest.runtime.rank.child import redirect_output, register_stacks, renew_libraries, use_cuda_freely
from disttest.runtime.rank.log_capture import forget_log_capture
from disttest.runtime.rank.rank import next_order
from disttest.runtime.rank.rank_test import PostMortem
from disttest.runtime.rank.recording import TestRecorder, recording_warnings
from disttest.runtime.rank.waits import begin_waits
from disttest.testing.hosting import Body, provide_host

_account: Account | None = None


def current_account() -> Account | None:
    """Return the report of this rank, to which the patched classes report exceptions of the test."""
    return _account


def set_up_child(
    config: pytest.Config, log: Path, stacks: Path, threads: int, captured: Iterable[logging.Logger]
) -> None:
    """Prepare a freshly forked rank; ``captured`` are the loggers that pytest listened to when it was forked."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    provide_host(None)
    use_cuda_freely()
    redirect_output(config, log)
    register_stacks(stacks)
    forget_log_capture(captured)
    renew_libraries(threads)
    state_snapshot.reseed(int.from_bytes(os.urandom(4), "little"))


def account_for(channel: Channel, post_mortem: PostMortem | None) -> Account:
    """Create a new report of this rank, and make it the current one."""
    global _account
    _account = Account(channel, post_mortem)
    return _account


def run_once(rank: int, mine: Account, body: Body, skips: dict[int, str]) -> TestDone:
    """Run the body of one test; the rank leaves with the exit code that torch's harness would see."""
    pipe = ChannelPipe(mine)
    with sending_warnings(mine.channel):
        code = run_to_exit_code(lambda: body(rank, pipe), mine)
    mine.report_end(code, skips)
    return TestDone(exit_code=code)


def serve_tests(
    rank: int,
    channel: Channel,
    mine: Account,
    prepare: Callable[[int], None],
    run: Callable[[str], None],
    skips: dict[int, str],
) -> TestDone:
    """Run one test after another until the main process ends the rank. A failed preparation fails every test."""
    unprepared = _attempt_to(lambda: prepare(rank))
    while (order := next_order(channel)) is not None:
        point_output_at(order.log)
        flight.note_start()
        begin_waits()
        mine = account_for(channel, mine.post_mortem)
        with sending_warnings(channel):
            error = unprepared or _attempt_to(lambda: run(order.nodeid))
        mine.report_kept(error, skips)
        channel.send(TestDone(leaks=watchdog.stop_leftover()))
    return TestDone(exit_code=0)


@contextmanager
def sending_warnings(channel: Channel) -> Iterator[None]:
    """Send the warnings of a test to the main process, because pytest's own recorder does not reach this rank."""
    recorder = TestRecorder()
    with recording_warnings(recorder):
        yield
    recorder.send(channel)


def _attempt_to(action: Callable[[], None]) -> BaseException | None:
    try:
        action()
    except BaseException as error:  # noqa: BLE001  # it is reported as the outcome of the test
        return error
    return None
