"""CUDA streams of this process and what they wait for, from torch's own trace of CUDA events.

The trace includes events of C++ code: NCCL, the autograd engine and ``nonzero()`` order streams there, and each one
missed would be a false finding. torch cannot switch the trace off again. It is therefore switched on by the first call
over NCCL that this sanitizer sees.

A stream does its work in order. Work that it gets after waiting for an event runs after everything that the event's
stream had got before recording it. Work that a thread issues after waiting for a stream runs after all of that stream's
work.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Container

import torch
from torch.cuda import _gpu_trace

from disttest.observe import Wait
from disttest.options.environment import torch_switch


class _Issuing:
    """Events on the streams while a call is being issued."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        """Stream of the call: that of its backend, once that has waited for the current one."""
        self.is_apart = False
        """Whether the call runs on a stream of its backend."""
        self.recorded: list[tuple[int, int]] = []
        """Recorded events and their streams."""


class StreamOrder:
    """Calls that each stream runs after. Streams, events and calls are identified by number."""

    def __init__(self) -> None:
        self._calls: set[int] = set()
        """Calls that some stream may not have waited for."""
        self._behind: defaultdict[int, set[int]] = defaultdict(set)
        self._before: dict[int, set[int]] = {}
        """Event -> calls before it."""
        self._issuing: dict[int, _Issuing] = {}
        """Thread -> call being issued."""
        self._waits = 0
        """Number of times that a stream was made to wait for an event."""
        self._begun: dict[int, int] = {}
        """Number of a thread's wait -> ``_waits`` at its beginning."""

    def begin_issue(self, stream: int) -> None:
        """Note that this thread hands a call to its backend while this stream is current."""
        self._issuing[threading.get_ident()] = _Issuing(stream)

    def end_issue(self, call: int) -> bool:
        """Note that the backend has accepted the call. Return whether its stream is known; in a batch it is not."""
        issuing = self._issuing.pop(threading.get_ident(), None)
        if issuing is None or not issuing.recorded:
            return False
        self._calls.add(call)
        self._behind[issuing.stream].add(call)
        # The backend records an event on its own stream behind the call. It does so before the call has its
        # number here.
        for event, stream in issuing.recorded if issuing.is_apart else ():
            if stream == issuing.stream:
                self._before[event].add(call)
        return True

    def record(self, event: int, stream: int) -> None:
        """Note that a stream recorded an event."""
        # An event that is recorded again is a new one: waits mean its last record. Complete calls are left
        # out.
        self._before[event] = self._behind[stream] & self._calls
        if issuing := self._issuing.get(threading.get_ident()):
            issuing.recorded.append((event, stream))

    def wait(self, event: int, stream: int) -> None:
        """Note that a stream waits for an event."""
        self._waits += 1
        # Events from before the trace are unknown, and have no call before them.
        self._behind[stream] |= self._before.get(event, set())
        issuing = self._issuing.get(threading.get_ident())
        if issuing is not None and not issuing.is_apart:
            issuing.stream, issuing.is_apart = stream, True

    def begin_wait(self, number: int) -> None:
        """Note that a thread begins to wait."""
        self._begun[number] = self._waits

    def end_wait(self, number: int) -> bool:
        """Note that the wait is over. Return whether a stream was made to wait meanwhile."""
        return self._waits > self._begun.pop(number, self._waits)

    def is_behind(self, stream: int, call: int) -> bool:
        """Whether work that a stream gets now runs after a call."""
        return call in self._behind[stream]

    def over_with_stream(self, stream: int) -> set[int]:
        """Return the calls that are complete once a thread has waited for a stream."""
        return self._behind[stream] & self._calls

    def over_with_event(self, event: int) -> set[int]:
        """Return the calls that are complete once a thread has waited for an event."""
        return self._before.get(event, set()) & self._calls

    def over_with_device(self) -> set[int]:
        """Return the calls that are complete once a thread has waited for the device."""
        return set(self._calls)

    def keep(self, calls: Container[int]) -> None:
        """Drop all other calls: they are complete or no longer needed."""
        self._calls = {call for call in self._calls if call in calls}
        for behind in self._behind.values():
            behind &= self._calls


class CudaStreams:
    """Order of CUDA streams and calls.

    Args:
        over: called with the numbers of calls that are complete, since a thread has waited for a stream, an event or
            the device.
    """

    def __init__(self, over: Callable[[set[int]], None]) -> None:
        self.order = order = StreamOrder()
        _gpu_trace.register_callback_for_event_record(order.record)
        _gpu_trace.register_callback_for_event_wait(order.wait)
        for register, calls in (
            (_gpu_trace.register_callback_for_stream_synchronization, order.over_with_stream),
            (_gpu_trace.register_callback_for_event_synchronization, order.over_with_event),
            (_gpu_trace.register_callback_for_device_synchronization, order.over_with_device),
        ):
            register(lambda *which, calls=calls: over(calls(*which)))
        # torch's own sanitizer of CUDA streams uses the same trace, which has no public switch (torch 2.9 to 2.15):
        # https://github.com/pytorch/pytorch/blob/main/torch/cuda/_sanitizer.py
        torch._C._activate_gpu_trace()  # noqa: SLF001

    def begin_issue(self, device: torch.device) -> None:
        """Note that this thread hands a call to its backend."""
        # Work on a capturing stream does not run now.
        if not torch.cuda.is_current_stream_capturing():
            self.order.begin_issue(_current(device))

    def is_behind(self, device: torch.device, call: int) -> bool:
        """Whether work that this thread launches now runs after a call."""
        return self.order.is_behind(_current(device), call)

    @staticmethod
    def blocks(wait: Wait) -> bool:
        """Whether a wait blocks the thread, as ``wait()`` with a time limit does, and not only a stream."""
        # By default wait() of NCCL blocks only the current stream: https://github.com/pytorch/pytorch/issues/147309
        if torch_switch("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"):
            return True
        return wait.call is not None and wait.timeout_s != wait.call.timeout_s


def _current(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)
