"""A rank under VS Code, or another client of the Debug Adapter Protocol: it waits for the client, and limits are
suspended.

debugpy (https://github.com/microsoft/debugpy) listens inside the rank: a separate process would be one more leftover.
"""

from __future__ import annotations

import importlib.util
import os
import pdb
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from disttest.clock import sleep
from disttest.errors import UsageError
from disttest.limits import TICK_S
from disttest.options.run import WorldSettings
from disttest.plugins.debuggers.hooks import DEBUGPY

LOOPBACK = "127.0.0.1"
StopWhereRaised = Callable[[BaseException], None]
"""Function that stops a debugger at the place where a failed test raised an exception."""


def check_debugger(port: int) -> None:
    """Check that a debugger could connect.

    Raises:
        UsageError: debugpy is not installed, or the port is in use.
    """
    if importlib.util.find_spec("debugpy") is None:
        raise UsageError("--debugpy needs the package debugpy: pip install debugpy")
    try:
        # Tried here, since debugpy waits for ever at a port that is in use.
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        raise UsageError(
            f"--debugpy: no rank can listen at {LOOPBACK}:{port} ({os.strerror(error.errno or 0)}): choose another port"
        ) from None


def await_debugger(settings: WorldSettings, hold: Callable[[bool], None]) -> StopWhereRaised:
    """Wait until a debugger has connected and set its breakpoints; return the function that shows it an exception.

    Args:
        settings: options of the run.
        hold: called with whether the limits of the world are suspended, which they are while a debugger is connected.

    Raises:
        UsageError: the port is in use (debugpy would wait for ever).
    """
    port = DEBUGPY.of(settings)
    check_debugger(port)
    import debugpy

    debugpy.listen((LOOPBACK, port), in_process_debug_adapter=True)
    debugpy.wait_for_client()
    hold(True)
    threading.Thread(target=_follow, args=(debugpy, hold), name="disttest-debugger", daemon=True).start()
    # Unlike breakpoint(), pdb.set_trace() does not ask sys.breakpointhook (Python 3.11 to 3.13).
    sys.breakpointhook = pdb.set_trace = debugpy.breakpoint
    stop_where_raised: StopWhereRaised = debugpy.trigger_exception_handler
    return stop_where_raised


def _follow(debugpy: Any, hold: Callable[[bool], None]) -> None:
    """Suspend the limits of the world while a debugger is connected. One that has left may return."""
    # The attributes by which debugpy recognises its own threads.
    threading.current_thread().pydev_do_not_trace = True  # type: ignore[attr-defined]
    threading.current_thread().is_pydev_daemon_thread = True  # type: ignore[attr-defined]
    while True:
        hold(debugpy.is_client_connected())
        sleep(TICK_S)


class StopsWhereATestFails:
    """The pytest plugin that stops the debugger at a failure, if it stops at uncaught exceptions."""

    def __init__(self, stop: StopWhereRaised) -> None:
        self._stop = stop

    def pytest_exception_interact(self, call: pytest.CallInfo[None]) -> None:
        """Pass the exception on. pytest has caught it, so debugpy does not see it as uncaught."""
        if call.excinfo is not None:
            self._stop(call.excinfo.value)
