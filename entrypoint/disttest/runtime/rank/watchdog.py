"""Stop the timer of faulthandler if a test leaves it running.

The timer would end a later test, or write stacks into its log. Python cannot report whether it runs, so ranks count the
calls that start and stop it. A timer that ran before the first test (a conftest may start it for the whole run) is left
alone, and so is one started through a name that a module imported earlier.
"""

from __future__ import annotations

import faulthandler
import functools
import os
from collections.abc import Callable
from typing import Any

LEFT = "timer faulthandler.dump_traceback_later (still running)"
_is_running = False


def count_starts() -> None:
    """Track in this process whether a test has started the timer."""
    # faulthandler does not tell whether its timer runs (Python 3.11 to 3.13).
    faulthandler.dump_traceback_later = _counted(faulthandler.dump_traceback_later, runs=True)
    faulthandler.cancel_dump_traceback_later = _counted(faulthandler.cancel_dump_traceback_later, runs=False)
    # The timer is a thread. A fork lacks it, and would wait for its end forever.
    os.register_at_fork(after_in_child=_forget)


def stop_leftover() -> tuple[str, ...]:
    """Stop and name the timer if a test has left it running."""
    if not _is_running:
        return ()
    faulthandler.cancel_dump_traceback_later()
    return (LEFT,)


def _forget() -> None:
    global _is_running
    _is_running = False


def _counted(function: Callable[..., Any], *, runs: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        global _is_running
        # Before the note: with wrong arguments faulthandler raises, and starts or stops nothing.
        result = function(*args, **kwargs)
        _is_running = runs
        return result

    return counted
