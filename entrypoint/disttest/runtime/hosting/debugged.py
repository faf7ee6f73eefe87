"""A debugger in a hosted rank, in which no pytest runs: it is told of what the test raises."""

from __future__ import annotations

import bdb
from collections.abc import Callable
from pathlib import Path

import pytest

from disttest.options.run import WorldSettings
from disttest.runtime.hosting.account import PostMortem
from disttest.runtime.hosting.raised import tell
from disttest.runtime.messages.phases import PhaseCell
from disttest.runtime.rank.debug_adapter import await_debugger
from disttest.runtime.rank.debugging import debug_at_breakpoints


def debug_hosted_rank(
    settings: WorldSettings, rank: int, board: Path, config: pytest.Config
) -> PostMortem | None:
    """Have this rank debugged at ``breakpoint()``, and by what is returned where its test fails.

    Args:
        settings: of the run.
        rank: this one.
        board: where it says that somebody debugs it.
        config: pytest's.
    """
    hold = PhaseCell(board, rank).hold
    debugger = debug_at_breakpoints(settings, rank, hold)
    if settings.awaits_debugger(rank):
        hold(True)  # its test runs already
        stop = await_debugger(settings, hold)

        def stop_there(error: BaseException, report: Callable[[], None]) -> None:
            report()
            stop(error)

        return stop_there
    if debugger is None:
        return None

    def look_at(error: BaseException, report: Callable[[], None]) -> None:
        is_failure = not isinstance(error, bdb.BdbQuit)
        debugger.terminal.wait(is_failure)
        report()
        if is_failure:
            message, text = tell(error)
            debugger.look_at(message, error.__traceback__, lambda writer: writer.write(text), config)

    return look_at
