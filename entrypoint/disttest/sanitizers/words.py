"""Words that all sanitizers use for operations."""

from __future__ import annotations

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


def title_of(op: str) -> str:
    """``all_reduce``: the function that users call for an operation of the layer."""
    return _TITLES.get(op, op)
