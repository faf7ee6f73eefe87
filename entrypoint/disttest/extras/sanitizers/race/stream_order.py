"""Which streams of a GPU come after which calls, by the events that they record and wait for. Pure.

A stream does its work in order. What it gets after it has waited for an event comes after all that the event's stream had
got before it was recorded, and what a thread issues after it has itself waited for a stream comes after all of that.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Container


class _Issuing:
    """What has happened on the streams while a call is being issued."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        """Where it runs: that of its backend, once this has waited for the current one."""
        self.is_apart = False
        """It runs on a stream of its backend."""
        self.recorded: list[tuple[int, int]] = []
        """Events and their streams."""


class StreamOrder:
    """The calls that each stream comes after; streams, events and calls are numbers of their makers."""

    def __init__(self) -> None:
        self._calls: set[int] = set()
        """Those that some stream may not have come after."""
        self._behind: defaultdict[int, set[int]] = defaultdict(set)
        self._before: dict[int, set[int]] = {}
        """Of an event."""
        self._issuing: dict[int, _Issuing] = {}
        """By thread."""
        self._waits = 0
        """How often a stream was made to wait for an event."""
        self._begun: dict[int, int] = {}
        """The same when a wait of a thread began, by that one's number."""

    def begin_issue(self, stream: int) -> None:
        """This thread hands a call to its backend, while this stream is the current one."""
        self._issuing[threading.get_ident()] = _Issuing(stream)

    def end_issue(self, call: int) -> bool:
        """The backend has taken it; whether it is known on which stream it runs (of one in a batch it is not)."""
        issuing = self._issuing.pop(threading.get_ident(), None)
        if issuing is None or not issuing.recorded:
            return False
        self._calls.add(call)
        self._behind[issuing.stream].add(call)
        for event, stream in issuing.recorded if issuing.is_apart else ():
            if stream == issuing.stream:
                self._before[event].add(call)
        return True

    def record(self, event: int, stream: int) -> None:
        """A stream has recorded an event."""
        self._before[event] = self._behind[stream] & self._calls
        if issuing := self._issuing.get(threading.get_ident()):
            issuing.recorded.append((event, stream))

    def wait(self, event: int, stream: int) -> None:
        """A stream waits for an event before it goes on."""
        self._waits += 1
        self._behind[stream] |= self._before.get(event, set())
        issuing = self._issuing.get(threading.get_ident())
        if issuing is not None and not issuing.is_apart:
            issuing.stream, issuing.is_apart = stream, True

    def begin_wait(self, number: int) -> None:
        """A thread begins to wait."""
        self._begun[number] = self._waits

    def end_wait(self, number: int) -> bool:
        """It goes on; whether a stream was made to wait meanwhile."""
        return self._waits > self._begun.pop(number, self._waits)

    def is_behind(self, stream: int, call: int) -> bool:
        """Whether what a stream gets now comes after a call."""
        return call in self._behind[stream]

    def over_with_stream(self, stream: int) -> set[int]:
        """The calls that are over when a thread has waited for a stream."""
        return self._behind[stream] & self._calls

    def over_with_event(self, event: int) -> set[int]:
        """The calls that are over when a thread has waited for an event."""
        return self._before.get(event, set()) & self._calls

    def over_with_device(self) -> set[int]:
        """The calls that are over when a thread has waited for all streams."""
        return set(self._calls)

    def keep(self, calls: Container[int]) -> None:
        """Forget all others: they are over, or nobody asks for them any more."""
        self._calls = {call for call in self._calls if call in calls}
        for behind in self._behind.values():
            behind &= self._calls
