"""In a rank that stays: one test after another, each as in a new rank, for as long as nothing is left of the last one."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from disttest.host.process import flush_output
from disttest.runtime.hosting.account import Account, ChannelPipe, run_to_exit_code
from disttest.runtime.hosting.ranks import account_for
from disttest.runtime.messages.protocol import Channel, RunTest, TestDone
from disttest.runtime.rank import flight, hygiene, watchdog
from disttest.runtime.rank.child import redirect_output, register_stacks
from disttest.runtime.rank.measured import save_coverage
from disttest.runtime.rank.module_watch import ModuleWatch
from disttest.runtime.rank.rank import next_order
from disttest.runtime.rank.waits import begin_waits


def serve_loans(
    channel: Channel,
    run: Callable[[RunTest, ChannelPipe], None],
    classes: Sequence[type],
    skips: Mapping[int, str],
    settle_for: Callable[[RunTest], None],
) -> int:
    """Run tests until told to leave, or until one has left something; then the exit code of that one.

    Args:
        channel: to the main process.
        run: the body of a test.
        classes: of the tests, which they might change.
        skips: exit codes that mean a skip.
        settle_for: what a rank does first for a test.
    """
    state = _State(classes)
    while (order := next_order(channel)) is not None:
        settle_for(order)
        mine = account_for(channel, None)
        pipe = ChannelPipe(mine)
        code = _run(lambda: run(order, pipe), mine, state)  # noqa: B023  # called at once
        mine.report_end(code, skips)
        pipe.close()
        if code not in (0, *skips) or not state.is_as_before():
            return code
        channel.send(TestDone(exit_code=code, stays=True))
    return 0


def settle_for_test(config: pytest.Config, stacks: Path, order: RunTest) -> None:
    """What a new rank finds by itself: its own log, other random numbers, the name of its test."""
    redirect_output(config, Path(order.log))
    register_stacks(stacks)
    os.environ["PYTEST_CURRENT_TEST"] = f"{order.nodeid} (call)"  # noqa: TID251
    hygiene.reseed(int.from_bytes(os.urandom(4), "little"))
    flight.note_start()
    begin_waits()


class _State:
    """What this process looked like before its first test."""

    def __init__(self, classes: Sequence[type]) -> None:
        gc.freeze()
        self._facts = hygiene.read_facts()
        self._modules = ModuleWatch(classes)
        self.threads_ended = False
        """Python has ended its threads, as it does when a process leaves: it starts some kinds of them no more."""

    def is_as_before(self) -> bool:
        """Whether it looks so again, once what can be put back was put back."""
        if self.threads_ended or _has_group() or self._modules.changed() or watchdog.stop_leftover():
            return False
        cleanup = hygiene.clean_up(self._facts, self._facts, pristine=self._facts, shared_fixtures=False)
        if cleanup.retire or cleanup.store_keys:
            return False
        gc.collect()  # or what hangs in a cycle, such as a group, would be destroyed in the middle of another test
        flush_output()
        save_coverage()
        return True


def _run(body: Callable[[], object], account: Account, state: _State) -> int:
    def end_threads() -> None:
        others = (each for each in threading.enumerate() if each is not threading.main_thread())
        if any(not isinstance(each, threading._DummyThread) for each in others):  # noqa: SLF001  # of C++
            state.threads_ended = True
            threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001

    return run_to_exit_code(body, account, end_threads)


def _has_group() -> bool:
    """Whether the test has left a process group: to destroy it may take its peers."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()
