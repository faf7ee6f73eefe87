"""The streams of CUDA in this process: what they wait for, whoever makes them, by torch's own trace of it.

The trace tells of the events of NCCL and of the autograd engine, too. torch cannot switch it off again; it is on from the first
call over NCCL that a sanitizer of races sees.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch.cuda import _gpu_trace

from disttest.extras.sanitizers.race.stream_order import StreamOrder
from disttest.observe import Wait

_BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")


class CudaStreams:
    """Which streams come after which calls.

    Args:
        over: is told of calls that are over, since a thread has waited for a stream, an event or the device.
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
        torch._C._activate_gpu_trace()  # noqa: SLF001

    def begin_issue(self, device: torch.device) -> None:
        """This thread hands a call to its backend."""
        if not torch.cuda.is_current_stream_capturing():
            self.order.begin_issue(_current(device))

    def is_behind(self, device: torch.device, call: int) -> bool:
        """Whether what this thread launches now comes after a call."""
        return self.order.is_behind(_current(device), call)

    @staticmethod
    def blocks(wait: Wait) -> bool:
        """Whether a wait makes the thread wait, as ``wait()`` with a time limit of its own does, and not only a stream."""
        if any(os.environ.get(name, "0") != "0" for name in _BLOCKING):  # noqa: TID251  # torch reads it, too
            return True
        return wait.call is not None and wait.timeout_s != wait.call.timeout_s


def _current(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)
