"""The operations of ``c10d``, one row each: the positions of arguments that a call's record needs. Pure data.

The numbers are positions in torch's schemas (``torch/csrc/distributed/c10d/Ops.cpp``). The dispatcher omits
trailing arguments with their default values.
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
    """Name in ``c10d``."""
    inputs: int | None
    outputs: int | None
    group: int
    is_async: int | None = None
    timeout: int | None = None
    """Milliseconds; -1 means the limit of the group."""
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    splits: tuple[int, int] | None = None
    """Positions of the part sizes of outputs and inputs, one per rank; empty lists mean equal parts."""
    blocks: bool = False
    """Whether it returns only when it is done, without a handle."""

    @cached_property
    def name(self) -> str:
        """Name in records."""
        return self.op.strip("_")

    @cached_property
    def is_p2p(self) -> bool:
        """Whether it is a send or a receive."""
        return self.tag is not None


# The first row: allreduce_(Tensor[] tensors, ProcessGroup, ReduceOp, Tensor? sparse_indices, bool asyncOp,
# int timeout).
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
"""Names of the collectives without outputs: they write into their inputs."""

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
"""Names of operations, mapped to those of ``torch.distributed`` if they differ."""

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
"""Operations of ``_c10d_functional`` that issue calls. Each reaches an operation of ``c10d`` through C++."""

WAIT, WAIT_FOR_ALL = "wait_tensor", "wait_tensors"
"""Operations of ``_c10d_functional`` that wait."""

NEWEST_READ = (2, 15)
"""Newest release of torch whose names were compared. From 2.9 to it, names were added and none removed."""

_SEQUENCES = (list, tuple)  # a union of types would be built again for each call


def title_of(op: str) -> str:
    """Return the name of the function that users call: ``all_reduce`` for ``allreduce``."""
    return _TITLES.get(op, op)


def argument(args: Sequence[Any], place: int | None, default: Any = None) -> Any:
    """Return an argument, or its default if the dispatcher omitted it."""
    return default if place is None or place >= len(args) else args[place]


def tensors(value: Any) -> tuple[torch.Tensor, ...]:
    """Return all tensors of an argument: one, a list, or a list of lists."""
    if value is None:
        return ()
    if not isinstance(value, _SEQUENCES):
        return (value,)
    if value and isinstance(value[0], _SEQUENCES):
        return tuple(tensor for each in value for tensor in each)
    return tuple(value)
