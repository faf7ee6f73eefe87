"""Gloo's message threads give way to the threads that compute.

Such a thread (``gloo_tcp_loop``) wakes for each message. It spins on the lock of its connection until it gets the lock, or
until the received data is claimed. Where ranks outnumber processors, it preempts the very thread that holds the lock and
spins for the rest of its time slice: an ``all_reduce`` over 4 ranks on 2 processors takes 5 ms, and 1 ms without that. As
batch work (``SCHED_BATCH``) a thread has the same share of the processors but never preempts a running thread; see
https://man7.org/linux/man-pages/man7/sched.7.html.
``python bench/gloo_threads.py`` measures it, also next to other programs that want the processors.

Only these threads change: a rank that is batch work as a whole waits up to 11 ms after each message next to other
programs. The price is that 2 ranks next to two busy programs take 2.9 ms where torch takes 0.9.
"""

from __future__ import annotations

import contextlib
import os

from disttest.host.other_threads import name_of_thread, thread_ids
from disttest.observe import Group, Tool

_MESSAGE_THREAD = "gloo_tcp_loop"
_seen: frozenset[int] = frozenset()


def give_way() -> None:
    """Make the message threads that started since the last call batch work; without permission they stay as they are."""
    global _seen  # the threads of a process
    now = thread_ids()
    for tid in now - _seen:
        with contextlib.suppress(OSError):
            # A thread whose policy the user has chosen keeps it. SCHED_BATCH has the priority 0 only.
            if name_of_thread(tid) == _MESSAGE_THREAD and os.sched_getscheduler(tid) == os.SCHED_OTHER:
                os.sched_setscheduler(tid, os.SCHED_BATCH, os.sched_param(0))
    # Ended threads are forgotten, since the kernel uses their numbers again.
    _seen = now


class GiveWay(Tool):
    """Treat the threads of each new group."""

    def on_group(self, _group: Group, *, made: bool) -> None:
        """Treat the message thread that a new group has started."""
        if made:
            give_way()
