"""Whether ranks are debugged in this run, and on which terminal or port."""

from __future__ import annotations

import os

import pytest

from disttest.errors import UsageError
from disttest.options.run import RunOptions
from disttest.plugins.debuggers.debug_adapter import LOOPBACK, check_debugger
from disttest.plugins.debuggers.hooks import DEBUG_RANK, DEBUGPY


def holds_ranks(config: pytest.Config, options: RunOptions) -> bool:
    """Return whether ranks are debugged.

    Args:
        config: pytest's configuration.
        options: options of the run.

    Raises:
        UsageError: ranks cannot be debugged as requested: there is no terminal, no debugpy, or the port is in use.
    """
    port = DEBUGPY.of(options)
    if port is None:
        return bool(terminal_of(config, options))
    if not config.getoption("disttest_rank"):
        check_debugger(port)
        rank = DEBUG_RANK.of(options) or 0
        place = f"rank {rank} of each world waits for a debugger at {LOOPBACK}:{port}"
        config.pluginmanager.register(_Announcement(place), "disttest-debugger-place")
    return True


class _Announcement:
    """A plugin of pytest that prints where to connect, also with ``-q``, which has no header."""

    def __init__(self, place: str) -> None:
        self._place = place

    def pytest_report_collectionfinish(self) -> list[str]:
        """Return the line."""
        return [f"disttest: {self._place}"]


def terminal_of(config: pytest.Config, options: RunOptions) -> str:
    """Return the device of the terminal on which ranks are debugged; empty if none is.

    Args:
        config: pytest's configuration.
        options: options of the run.

    Raises:
        UsageError: there is no terminal, and the user named a rank.
    """
    is_named = DEBUG_RANK.of(options) is not None
    if DEBUGPY.of(options) is not None or not (is_named or config.getoption("usepdb", default=False)):
        return ""
    try:
        return os.ttyname(_stdin(config))
    except OSError:
        if not is_named or config.getoption("disttest_rank"):
            return ""
        raise UsageError("--debug-rank needs a terminal, but standard input is not one") from None


def _stdin(config: pytest.Config) -> int:
    """Return the descriptor of the standard input, which pytest moves while it captures."""
    capture = config.pluginmanager.getplugin("capturemanager")
    source = getattr(getattr(capture, "_global_capturing", None), "in_", None)
    return getattr(source, "targetfd_save", 0)
