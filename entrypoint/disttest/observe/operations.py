"""The operations of ``c10d``, one row each: where in their arguments a call's record finds its parts. Pure data.

The numbers are places in torch's schemas (``torch/csrc/distributed/c10d/Ops.cpp``). The dispatcher leaves out arguments
at the end that have their default values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Operation:
    """A row."""

    op: str
    """In ``c10d``."""
    inputs: int | None
    outputs: int | None
    group: int
    is_async: int | None = None
    timeout: int | None = None
    """Milliseconds; -1: the group's."""
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    splits: tuple[int, int] | None = None
    """Sizes of the parts of outputs and of inputs, one for each rank; empty lists: equal parts."""
    blocks: bool = False
    """It has no handle: it returns when it is done."""

    @cached_property
    def name(self) -> str:
        """As records tell it."""
        return self.op.strip("_")

    @cached_property
    def is_p2p(self) -> bool:
        """Whether it is a send or a receive."""
        return self.tag is not None


OPERATIONS = (
    Operation("allreduce_", 0, None, 1, 4, 5),
    Operation("allreduce_coalesced_", 0, None, 1, 3, 4),
    Operation("broadcast_", 0, None, 1, 4, 5, root=2),
    Operation("allgather_", 1, 0, 2, 3, 4),
    Operation("_allgather_base_", 1, 0, 2, 3, 4),
    Operation("allgather_coalesced_", 1, 0, 2, 3),
    Operation("allgather_into_tensor_coalesced_", 1, 0, 2, 3),
    Operation("reduce_scatter_", 1, 0, 2, 4, 5),
    Operation("_reduce_scatter_base_", 1, 0, 2, 4, 5),
    Operation("reduce_scatter_tensor_coalesced_", 1, 0, 2, 4, 5),
    Operation("reduce_", 0, None, 1, 5, 6, root=3),
    Operation("gather_", 1, 0, 2, 4, 5, root=3),
    Operation("gather_into_tensor_", 1, 0, 2, 4, 5, root=3),
    Operation("scatter_", 1, 0, 2, 4, 5, root=3),
    Operation("alltoall_", 1, 0, 2, 3, 4),
    Operation("alltoall_base_", 1, 0, 2, 5, 6, splits=(3, 4)),
    Operation("barrier", None, None, 1, 3, 4),
    Operation("monitored_barrier_", None, None, 1, None, 3, blocks=True),
    Operation("send", 0, None, 1, peer=2, tag=3),
    Operation("recv_", None, 0, 1, peer=2, tag=3),
    Operation("recv_any_source_", None, 0, 1, tag=2),
)

IN_PLACE = frozenset(
    row.name for row in OPERATIONS if row.outputs is None and row.inputs is not None and not row.is_p2p
)
"""Names of the collectives without outputs: they write what they read."""

_TITLES = {
    "allgather": "all_gather",
    "allgather_base": "all_gather_into_tensor",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "recv_any_source": "recv",
    "reduce_scatter_base": "reduce_scatter_tensor",
}
"""Names of operations -> those of ``torch.distributed``, where they differ."""

FUNCTIONAL = (
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_gather_into_tensor_out",
    "all_reduce",
    "all_reduce_",
    "all_reduce_coalesced",
    "all_reduce_coalesced_",
    "all_to_all_single",
    "batch_p2p_ops",
    "broadcast",
    "broadcast_",
    "irecv",
    "isend",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_out",
)
"""Those of ``_c10d_functional`` that issue calls; each reaches an operation of ``c10d`` through C++."""

WAIT, WAIT_FOR_ALL = "wait_tensor", "wait_tensors"
"""Those of ``_c10d_functional`` that wait."""

NEWEST_READ = (2, 15)
"""The release of torch whose names were read last, of those from 2.9 on: there some came, and none went."""

_SEQUENCES = (list, tuple)  # a union of types would be made anew for each call


def title_of(op: str) -> str:
    """``all_reduce`` for ``allreduce``: the function that users call."""
    return _TITLES.get(op, op)


def argument(args: Sequence[Any], place: int | None, default: Any = None) -> Any:
    """An argument, or its default where the dispatcher has left it out."""
    return default if place is None or place >= len(args) else args[place]


def tensors(value: Any) -> tuple[torch.Tensor, ...]:
    """All tensors in an argument: one, a list, or a list of lists."""
    if value is None:
        return ()
    if not isinstance(value, _SEQUENCES):
        return (value,)
    if value and isinstance(value[0], _SEQUENCES):
        return tuple(tensor for each in value for tensor in each)
    return tuple(value)
