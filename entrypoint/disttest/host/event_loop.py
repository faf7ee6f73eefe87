"""The event loop: the module in which the processes of disttest wait for several events.

A source is an object whose descriptor becomes readable at an event: a pipe, a socket, a child (at its end), or
:class:`NotedSignals` (at a signal). :func:`wait_any` waits once and returns the ready sources. :class:`EventLoop` keeps
sources and calls a function for each ready one. Both take a length, a time on the monotonic clock, or both::

    while child.poll() is None and monotonic() < deadline_s:
        if pipe in wait_any(child, pipe, timeout_s=TICK_S, until_s=deadline_s):
            read(pipe)
"""

# Rules for both:
#
# - They are level-triggered: a source with unread data is ready again at the next wait. A function therefore reads one
#   portion and returns, so that one busy source cannot delay the others.
# - A signal with a handler does not shorten a wait, unless the handler raises (https://peps.python.org/pep-0475/).
# - The last messages of a child may still be unread when its pidfd is ready. Read them before you act on its end.

from __future__ import annotations

import math
import os
import select
import selectors
import signal
from collections.abc import Callable, Collection, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

from disttest.clock import monotonic

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike as Source

_LONGEST_WAIT_S = 1_000_000.0  # the kernel counts the milliseconds of a wait in 31 bits


def wait_any(
    *sources: Source | None,
    writable: Iterable[Source] = (),
    timeout_s: float = math.inf,
    until_s: float = math.inf,
) -> list[Source]:
    """Wait until a source is ready to read from (or write into, if ``writable``); return the ready ones.

    A source that is None is skipped. The list is empty at the end of the time.
    """
    wanted = {each: select.POLLIN for each in sources if each is not None}
    for each in writable:
        wanted[each] = wanted.get(each, 0) | select.POLLOUT
    # `select.select` refuses descriptors from 1,024 on, which a world with hundreds of ranks reaches.
    poller = select.poll()
    for each, events in wanted.items():
        poller.register(each, events)
    limit_s = _limit_s(timeout_s, until_s)
    ready = {fd for fd, _ in poller.poll(None if limit_s is None else limit_s * 1000)}
    # Any event counts, POLLHUP and POLLERR included: the caller learns of the end by its next read.
    return [each for each in wanted if (each if isinstance(each, int) else each.fileno()) in ready]


class EventLoop:
    """Sources with a function for each, called when the source is ready."""

    def __init__(self) -> None:
        # epoll keeps the sources in the kernel. A world with hundreds of ranks would otherwise pass all of
        # them at each wait.
        self._selector = selectors.EpollSelector()

    def __contains__(self, source: Source) -> bool:
        """Return whether the loop waits for a source."""
        return source in self._selector.get_map()

    def fileno(self) -> int:
        """Return the descriptor of the loop: a loop is a source, readable when one of its sources is ready."""
        return self._selector.fileno()

    def watch(self, source: Source, on_ready: Callable[[], None], *, writing: bool = False) -> None:
        """Call a function whenever a source is readable, or writable if ``writing``."""
        events = selectors.EVENT_WRITE if writing else selectors.EVENT_READ
        self._selector.register(source, events, on_ready)

    def ignore(self, source: Source) -> None:
        """Stop waiting for a source, before it is closed; do nothing if it is not watched."""
        # The kernel keeps reporting a closed descriptor of which a fork has a copy:
        # https://man7.org/linux/man-pages/man7/epoll.7.html (Questions and answers, 6)
        if source in self:
            self._selector.unregister(source)

    def wait(self, timeout_s: float = math.inf, *, until_s: float = math.inf) -> bool:
        """Wait until a source is ready, and call the functions of the ready ones; return whether one was ready."""
        ready = self._selector.select(_limit_s(timeout_s, until_s))
        for key, _ in ready:
            # A function may have ignored a later source, closed it, and watched another one under its number.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        return bool(ready)

    def close(self) -> None:
        """Close the loop; the sources stay open."""
        self._selector.close()


def _limit_s(timeout_s: float, until_s: float) -> float | None:
    """Return the seconds to wait; None without a limit."""
    # The default `until_s` is infinite, and stays so here.
    limit_s = min(timeout_s, until_s - monotonic())
    return None if math.isinf(limit_s) else min(max(0.0, limit_s), _LONGEST_WAIT_S)


def catch(signum: int, handler: Callable[[int, FrameType | None], None]) -> Any:
    """Set the handler of a signal, and return the previous one. SIGHUP stays ignored under nohup."""
    before = signal.getsignal(signum)
    if signum != signal.SIGHUP or before is not signal.SIG_IGN:
        signal.signal(signum, handler)
    return before


class NotedSignals:
    """Signals of this process as bytes in a pipe."""

    # There can be one per process, because the interpreter writes to one pipe only.

    def __init__(self, signums: Collection[int]) -> None:
        """Record these signals from now on; they no longer interrupt anything."""
        self._signums = frozenset(signums)
        # Python refuses a wakeup descriptor that blocks: its handler of signals in C must never wait.
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # set first, so that every signal with a handler is recorded
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for signum in signums:
            catch(signum, lambda *_: None)

    def fileno(self) -> int:
        """Return the descriptor that is readable once a signal has arrived."""
        return self._reader

    def first(self) -> int | None:
        """Return the first signal since the last call; the others are dropped."""
        try:
            numbers = os.read(self._reader, 64)
        except BlockingIOError:
            return None
        # The pipe also carries the numbers of other signals with a Python handler, for example of a user's
        # plugin.
        return next((number for number in numbers if number in self._signums), None)

    def close(self) -> None:
        """Close the pipe. The signals are ignored from now on, because the process is about to end."""
        signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)
