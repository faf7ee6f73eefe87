"""Find threads, processes and exit handlers that keep the pytest process alive, and the tests that started them.

At its end the interpreter waits for threads and processes that are not daemons, and runs exit handlers.
"""

from __future__ import annotations

import atexit
import multiprocessing
import threading
from collections.abc import Iterator

import pytest


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
