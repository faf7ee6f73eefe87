"""What keeps the pytest process from ending when all tests are done, and which test started it.

The interpreter waits at its end for threads and processes that are not daemons, and for exit handlers.
"""

from __future__ import annotations

import atexit
import multiprocessing
import threading
from collections.abc import Iterator

import pytest


class ExitBlockers:
    """A pytest plugin that notes which ordinary test started a thread, a process or an exit handler."""

    def __init__(self) -> None:
        # The thread or process -> the test that started it; empty for one that was there before.
        self._tests = dict.fromkeys(_waited_for(), "")
        # Tests that have registered exit handlers.
        self._registering: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Compare before and after a test."""
        handlers = atexit._ncallbacks()  # noqa: SLF001  # the only count of exit handlers
        result = yield
        self._tests = {each: self._tests.get(each, item.nodeid) for each in _waited_for()}
        if atexit._ncallbacks() > handlers:  # noqa: SLF001
            self._registering.append(item.nodeid)
        return result

    def describe(self) -> str:
        """What the interpreter is about to wait for, in words."""
        found = [f"{_name(each)}{_started_by(self._tests.get(each, ''))}" for each in _waited_for()]
        if not found and self._registering:
            found = [f"an exit handler that {' or '.join(self._registering)} registered"]
        return ", ".join(found) or "an exit handler that no test has registered"


_Waited = threading.Thread | multiprocessing.process.BaseProcess


def _waited_for() -> list[_Waited]:
    threads = [thread for thread in threading.enumerate() if not thread.daemon]
    processes = [child for child in multiprocessing.active_children() if not child.daemon]
    return [*(thread for thread in threads if thread is not threading.main_thread()), *processes]


def _name(waited: _Waited) -> str:
    kind = "thread" if isinstance(waited, threading.Thread) else "process"
    return f"the {kind} {waited.name}"


def _started_by(test: str) -> str:
    return f" (started by {test})" if test else ""
