"""A debugger in a rank that a class has started. No pytest runs there; the debugger receives the test's exception."""

from __future__ import annotations

import bdb
from collections.abc import Callable

import pytest

from disttest.plugins.debuggers.debug_adapter import await_debugger
from disttest.plugins.debuggers.debugging import awaits_debugger, debug_at_breakpoints
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.runtime.rank.rank_test import PostMortem, Report


def debug_started_rank(
    rank: int, spec: RankSpec, config: pytest.Config, hold: Callable[[bool], None]
) -> PostMortem | None:
    """Debug this rank at ``breakpoint()``; return the function that debugs it at a failure.

    Args:
        rank: number of this rank.
        spec: description of the process that has started it.
        config: pytest's configuration.
        hold: called with whether the limits of the world are suspended.
    """
    debugger = debug_at_breakpoints(spec, rank, hold)
    if awaits_debugger(spec.settings, rank):
        hold(True)  # its test runs already
        stop = await_debugger(spec.settings, hold)

        def stop_there(error: BaseException, report: Report) -> None:
            report()
            stop(error)

        return stop_there
    if debugger is None:
        return None

    def look_at(error: BaseException, report: Report) -> None:
        is_failure = not isinstance(error, bdb.BdbQuit)
        debugger.terminal.wait(is_failure)
        message, text = report()
        if is_failure:
            debugger.look_at(message, error.__traceback__, lambda writer: writer.write(text), config)

    return look_at
