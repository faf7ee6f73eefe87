"""Processes that ranks have left behind, each with the test that started it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from disttest.clock import monotonic
from disttest.host.descendants import is_helper, shown_command
from disttest.host.proc import age_of

_MOST_NAMED = 10
_KERNEL_TICK_S = 0.01


def name_strays(pids: Iterable[int], began: Sequence[tuple[str, float]]) -> tuple[tuple[str, str], ...]:
    """Return the node id of the test and a description, for the first few of the processes.

    Args:
        pids: the living processes; one that has ended meanwhile is left out.
        began: each test of the world with its start on the monotonic clock, in order.
    """
    named = []
    for pid in [pid for pid in sorted(pids) if not is_helper(pid)][:_MOST_NAMED]:
        try:
            started_s = monotonic() - age_of(pid)
            process = f"{pid} ({shown_command(pid)})"
        except ProcessLookupError:
            continue
        named.append(_accuse(began, started_s, f"left a process, which was killed: {process}"))
    return tuple(named)


def _accuse(began: Sequence[tuple[str, float]], at_s: float, what: str) -> tuple[str, str]:
    """Find the test that ran at a time, which the kernel counts in 10 ms; name both if two are possible."""
    earlier = [nodeid for nodeid, began_s in began if began_s <= at_s][-1:]
    tests = earlier + [nodeid for nodeid, began_s in began if at_s < began_s <= at_s + _KERNEL_TICK_S]
    return (tests[0], what) if len(tests) == 1 else ("", f"{' or '.join(tests) or 'the world'} {what}")
