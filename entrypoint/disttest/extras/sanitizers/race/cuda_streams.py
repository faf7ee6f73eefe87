"""CUDA streams of this process and what they wait for, from torch's own trace of CUDA events.

The trace includes events of C++ code: NCCL, the autograd engine and ``nonzero()`` order streams there, and each one
missed would be a false finding. torch cannot switch the trace off again. It is therefore switched on by the first call
over NCCL that this sanitizer sees.
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
        if any(os.environ.get(name, "0") != "0" for name in _BLOCKING):  # noqa: TID251  # torch reads it, too
            return True
        return wait.call is not None and wait.timeout_s != wait.call.timeout_s


def _current(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)
