"""Gloo's threads that carry messages give way to the threads that compute.

Such a thread (``gloo_tcp_loop``) wakes with each message, and tries for the lock of its connection until it gets it, or until
somebody wants what has come. Where ranks outnumber processors it takes the processor from the very thread that holds the lock,
and turns in circles for the rest of its time slice: an ``all_reduce`` over 4 ranks on 2 processors takes 5 ms, and 1 ms
without that. As batch work (``SCHED_BATCH``, sched(7)) it has the same share of the processors, but takes none from a thread
that runs. `python bench/gloo_loops.py` measures it, also beside other programs that want the processors.

Only these threads: ranks that are batch work as a whole wait for others' programs after each message.
"""

from __future__ import annotations

import contextlib
import os

from disttest.host.other_threads import name_of_thread, thread_ids
from disttest.observe import Group, Tool

_LOOP = "gloo_tcp_loop"
_seen: frozenset[int] = frozenset()


def calm_gloo_loops() -> None:
    """Make batch work of the loops that were started since the last time; where that is not allowed they stay as they are."""
    global _seen  # the threads of a process
    now = thread_ids()
    for tid in now - _seen:
        with contextlib.suppress(OSError):
            if name_of_thread(tid) == _LOOP and os.sched_getscheduler(tid) == os.SCHED_OTHER:
                os.sched_setscheduler(tid, os.SCHED_BATCH, os.sched_param(0))
    _seen = now


class CalmGlooLoops(Tool):
    """Does so whenever a group has been made."""

    def on_group(self, _group: Group, *, made: bool) -> None:
        """A new group has a loop of its own."""
        if made:
            calm_gloo_loops()
