"""Handle test files that end the process while they are imported: they are skipped or fail, and the others run."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest


class LeftAtOnce(SystemExit):
    """``os._exit`` was called."""


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """Make ``os._exit`` raise :class:`LeftAtOnce` in this thread of this process; a fork still exits."""
    me, leave = (os.getpid(), threading.get_ident()), os._exit
    active = True

    def stay(status: int) -> None:
        # A fork made by the import must exit, and so must another thread.
        if not active or me != (os.getpid(), threading.get_ident()):
            leave(status)
        raise LeftAtOnce(status)

    # No exit handler or audit event precedes this call (Python 3.11 to 3.13), so only its replacement sees it.
    setattr(os, "_exit", stay)  # noqa: B010
    try:
        yield
    finally:
        # Modules may have imported the function by name.
        active = False
        setattr(os, "_exit", leave)  # noqa: B010  # nor is it typed


def report_of(collector: pytest.Collector, leaving: SystemExit) -> pytest.CollectReport:
    """Report a file that exited: with code 0 it is skipped, and the reason is its output."""
    said = _said(collector)
    at_once = isinstance(leaving, LeftAtOnce)
    # `sys.exit()` without an argument exits with 0.
    code = 0 if leaving.code is None else leaving.code
    if code == 0 and not at_once:
        reason = f"exited with code 0 while it was imported{': ' if said else ''}{' '.join(said.split())}"
        where = (str(collector.path), 1, f"Skipped: {reason}")
        return pytest.CollectReport(collector.nodeid, "skipped", where, [])
    call = f"os._exit({code!r})" if at_once else f"sys.exit({code!r})"
    message = f"{collector.nodeid} called {call} while it was imported; nothing of it was run"
    return pytest.CollectReport(collector.nodeid, "failed", f"{message}\n{said}".rstrip(), [])


def _said(collector: pytest.Collector) -> str:
    """Return the output of the import, as far as pytest has captured it."""
    capture: Any = collector.config.pluginmanager.getplugin("capturemanager")
    read: Callable[[], tuple[str, str]] | None = capture and capture.read_global_capture
    return "".join(read()) if read and capture.is_globally_capturing() else ""
