"""Policy for when a call is complete. Pure functions."""

from __future__ import annotations

from disttest.observe import Call, Wait, WaitKind

NCCL = "nccl"


class Policy:
    """A wait completes its call. If calls of a group run in order (NCCL), it completes the earlier ones, too.

    Args:
        as_nccl: treat all backends as NCCL; otherwise only NCCL runs calls in order.
    """

    def __init__(self, *, as_nccl: bool) -> None:
        self._as_nccl = as_nccl

    def in_order(self, first: Call, later: Call) -> bool:
        """Whether a later call runs only after a first one is complete."""
        in_one_queue = (first.group.name, first.peer) == (later.group.name, later.peer)
        return in_one_queue and (self._as_nccl or first.group.backend == NCCL)

    def is_over(self, call: Call, wait: Wait) -> bool:
        """Whether a call is complete once a wait is over."""
        if wait.kind is WaitKind.BACKWARD:
            return call.by_cpp and call.in_backward and not call.is_functional and _ended_by(wait, call)
        waited = wait.call
        if waited is None or call.n > waited.n:
            return False
        if call.n == waited.n or self.in_order(call, waited):
            return True
        # A functional collective that issues several calls is waited for by its last one.
        return call.is_functional and wait.kind is WaitKind.TENSOR and call.site == waited.site


def _ended_by(wait: Wait, call: Call) -> bool:
    """Whether a call from C++ belongs to a backward pass: of the same thread, or of one of torch's threads."""
    return call.thread == wait.thread or call.site.code is None
