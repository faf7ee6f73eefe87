"""Lower the priority of gloo's message threads against threads that compute.

A thread named ``gloo_tcp_loop`` wakes with each message and spins on the lock of its connection until it gets the lock
or a caller wants the data. If ranks outnumber processors, it takes the processor from the very thread that holds the
lock, and spins for the rest of its time slice. An ``all_reduce`` over 4 ranks on 2 processors takes 5 ms that way. As
batch work (``SCHED_BATCH``, sched(7)) the thread keeps its share of the processors but never preempts, and the same
call takes 1 ms. Measured by `python bench/gloo_loops.py`, also next to other programs that want the processors.

Only these threads are changed: a rank that is batch work as a whole waits up to 11 ms after each message next to
other programs. The price is that 2 ranks next to two busy programs take 2.9 ms where torch takes 0.9.
"""

from __future__ import annotations

import contextlib
import os

from disttest.host.other_threads import name_of_thread, thread_ids
from disttest.observe import Group, Tool

_LOOP = "gloo_tcp_loop"
_seen: frozenset[int] = frozenset()


def calm_gloo_loops() -> None:
    """Make batch work of the loops started since the last call; without permission they stay as they are."""
    global _seen  # the threads of a process
    now = thread_ids()
    for tid in now - _seen:
        with contextlib.suppress(OSError):
            if name_of_thread(tid) == _LOOP and os.sched_getscheduler(tid) == os.SCHED_OTHER:
                os.sched_setscheduler(tid, os.SCHED_BATCH, os.sched_param(0))
    _seen = now


class CalmGlooLoops(Tool):
    """Calls :func:`calm_gloo_loops` whenever a group is created."""

    def on_group(self, _group: Group, *, made: bool) -> None:
        """Handle the loop of a new group."""
        if made:
            calm_gloo_loops()
