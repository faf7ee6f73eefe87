"""The part in a hosted rank: it prepares the process, runs the test's body, and reports its outcome."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from disttest.descriptors import point_output_at
from disttest.host.process import flush_output
from disttest.plugin_manager import plugin_manager
from disttest.plugins.launching_classes.account import Account, ChannelPipe, run_to_exit_code
from disttest.plugins.launching_classes.inheritance import Inheritance
from disttest.runtime.messages.protocol import Channel, RunTest, TestDone, Variables, clean_text
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
    # torch's `tearDown` ends ranks by SIGTERM, for which the main process may have got a handler from a test.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    provide_host(None)
    use_cuda_freely()
    redirect_output(config, log)
    register_stacks(stacks)
    forget_log_capture(captured)
    renew_libraries(threads)
    # Forks have equal generators. A rank that its class starts is a new interpreter, whose numbers differ.
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
    # As in torch's worker: a skip or an error of the preparation is the outcome of each test.
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


def serve_requests(
    channel: Channel,
    run: Callable[[RunTest, ChannelPipe], None],
    inheritance: Inheritance,
    skips: Mapping[int, str],
    settle_for: Callable[[RunTest], None],
) -> TestDone:
    """Run tests until the main process ends the rank, or until a test has left state behind; return its last message.

    Args:
        channel: channel to the main process.
        run: runs the body of a test.
        inheritance: state inherited from the main process, including the tests' modules.
        skips: exit codes that mean a skip.
        settle_for: prepares the rank for a test.
    """
    state = _State(inheritance)
    while (order := next_order(channel)) is not None:
        settle_for(order)
        state.apply(order.variables)
        mine = account_for(channel, None)
        pipe = ChannelPipe(mine)
        with sending_warnings(channel):
            code = _run(lambda: run(order, pipe), mine, state)  # noqa: B023  # called immediately
        mine.report_end(code, skips)
        pipe.close()
        # After a failure the state of the process is unknown, so the rank leaves as a new one does.
        if code not in (0, *skips):
            return TestDone(exit_code=code)
        left = state.left(skipped=code in skips)
        if left is not None:
            return TestDone(exit_code=code, leaks=tuple(map(clean_text, left)))
        channel.send(TestDone(exit_code=code, stays=True))
    return TestDone(exit_code=0)


def settle_for_test(config: pytest.Config, stacks: Path, order: RunTest) -> None:
    """Prepare the rank like a new one: a separate log, other random numbers, the name of its test."""
    redirect_output(config, Path(order.log))
    register_stacks(stacks)
    os.environ["PYTEST_CURRENT_TEST"] = f"{order.nodeid} (call)"  # noqa: TID251
    state_snapshot.reseed(int.from_bytes(os.urandom(4), "little"))
    flight.note_start()
    begin_waits()


class _State:
    """The state of this process before its first test."""

    def __init__(self, inheritance: Inheritance) -> None:
        self._facts = state_snapshot.read_state()
        self._inheritance = inheritance
        self.threads: tuple[str, ...] = ()
        """Threads that Python has ended as it does at exit. It cannot start some kinds of threads again."""

    def apply(self, variables: Variables) -> None:
        """Apply changes of the main process's environment, which a new rank would inherit."""
        if variables:
            self._facts |= state_snapshot.set_variables(variables)

    def left(self, *, skipped: bool) -> tuple[str, ...] | None:
        """Describe state that a test has left and that cannot be restored; None if the rank may run another one."""
        # A skipped test leaves its group to the end of the process, which comes later in a rank that stays.
        if skipped:
            _destroy_groups()
        if left := (*self.threads, *_group(), *self._modules_changed(), *watchdog.stop_leftover()):
            return left
        # After the checks for threads and groups: nothing is worth restoring in a rank that leaves anyway.
        cleanup = state_snapshot.restore_state(self._facts, self._facts, shared_fixtures=False)
        if cleanup.retire or cleanup.store_keys:
            return (*cleanup.kept, *(f"store key {key}" for key in cleanup.store_keys))
        # Otherwise an object in a reference cycle, such as a group, would be destroyed in the middle of another
        # test.
        gc.collect()
        flush_output()
        plugin_manager().call("disttest_process_saves")
        return None

    def _modules_changed(self) -> tuple[str, ...]:
        name = self._inheritance.put_back()
        return (f"another value of {name}",) if name else ()


def _run(body: Callable[[], object], account: Account, state: _State) -> int:
    def end_threads() -> None:
        others = (each for each in threading.enumerate() if each is not threading.main_thread())
        # Dummy threads belong to C++; `threading` has no public name for their class (Python 3.11 to 3.13).
        of_python = [each for each in others if not isinstance(each, threading._DummyThread)]  # noqa: SLF001
        # `threading._shutdown` prevents further threads of some kinds, so the rank is not used again.
        if of_python:
            state.threads = tuple(f"thread {each.name}" for each in of_python)
            threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001

    return run_to_exit_code(body, account, end_threads)


def _group() -> tuple[str, ...]:
    """Return the process group that the test has left, because destroying it may need its peers."""
    return ("process group (not destroyed)",) if _groups() else ()


def _destroy_groups() -> None:
    """Destroy the groups of a skipped test, as the end of a new rank does. gloo's need no peer for that."""
    if (backends := _groups()) and all(backend == "gloo" for backend in backends):
        sys.modules["torch.distributed"].destroy_process_group()


def _groups() -> list[str]:
    """Return the backends of all groups."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return []
    # torch has no public list of groups (torch 2.9 to 2.15).
    return [dist.get_backend(group) for group in dist.distributed_c10d._world.pg_map]  # noqa: SLF001
