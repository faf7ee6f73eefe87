"""When a call counts as over. Pure."""

from __future__ import annotations

from disttest.observe import Call, Wait, WaitKind

NCCL = "nccl"


class Policy:
    """A wait ends its own call. Where calls of a group run one after another (NCCL), it ends those before it, too.

    Args:
        as_nccl: all backends are taken for NCCL; else only NCCL is.
    """

    def __init__(self, *, as_nccl: bool) -> None:
        self._as_nccl = as_nccl

    def in_order(self, first: Call, later: Call) -> bool:
        """Whether a later call runs only when a first one is over."""
        in_one_queue = (first.group.name, first.peer) == (later.group.name, later.peer)
        return in_one_queue and (self._as_nccl or first.group.backend == NCCL)

    def is_over(self, call: Call, wait: Wait) -> bool:
        """Whether a call is over when a wait is."""
        if wait.kind is WaitKind.BACKWARD:
            return call.by_cpp and call.in_backward and not call.is_functional and _ended_by(wait, call)
        waited = wait.call
        if waited is None or call.n > waited.n:
            return False
        if call.n == waited.n or self.in_order(call, waited):
            return True
        # Several calls that one functional collective has issued are waited for by the last of them.
        return call.is_functional and wait.kind is WaitKind.TENSOR and call.site == waited.site


def _ended_by(wait: Wait, call: Call) -> bool:
    """Whether a call of C++ belongs to a backward pass: of the same thread, or of one of torch's own."""
    return call.thread == wait.thread or call.site.code is None
