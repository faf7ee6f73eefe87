"""The features of each backend: the one table that decides which tests a backend has to pass.

A test names the features that it needs, ``@pytest.mark.needs("recv_any_source")``. A feature that the backend lacks
becomes a skip before any process starts, with the reason below. A feature without an entry here is
supported by every backend; a name that is not in the table is an error, so that no typing slip hides a test.
"""

from __future__ import annotations

from typing import NamedTuple


class Lack(NamedTuple):
    """A feature that one backend does not have."""

    backend: str
    reason: str
    device: str = ""
    """Lacking on this type of device only; empty: on all."""


_NCCL_HAS_NO_TAGS = Lack("nccl", "NCCL matches messages by order and has no tags")
_GLOO_EQUAL = Lack("gloo", "gloo moves pieces of one size only in this call (invalid tensor size)")

_GLOO_READS_MEMORY = Lack(
    "gloo", "gloo passes the address of the tensor to the network, so it needs CPU memory", "cuda"
)

LACKS: dict[str, tuple[Lack, ...]] = {
    # https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp
    "messages": (_GLOO_READS_MEMORY,),
    "recv_any_source": (
        Lack("nccl", "NCCL cannot receive from an unnamed source"),
        Lack("ucc", "UCC cannot receive from an unnamed source"),
    ),
    "tags": (_NCCL_HAS_NO_TAGS,),
    "send_to_self": (Lack("gloo", "gloo has no connection from a rank to itself (Pair is not connected)"),),
    "monitored_barrier": (Lack("nccl", "only gloo has monitored_barrier"), Lack("ucc", "only gloo has it")),
    "group_timeout": (Lack("nccl", "NCCL reports a late rank by its watchdog, which ends the process"),),
    "cpu_tensors": (Lack("nccl", "NCCL moves CUDA tensors only"),),
    "cuda_tensors": (Lack("gloo", "the world computes on the CPU", "cpu"),),
    "sparse": (
        Lack("nccl", "NCCL sums sparse tensors in builds with a special flag only"),
        Lack("ucc", "UCC has no sparse tensors"),
    ),
    "coalesced_deprecated": (
        Lack("nccl", "NCCL does not implement the deprecated coalesced calls"),
        Lack("ucc", "UCC does not implement the deprecated coalesced calls"),
        Lack("gloo", "gloo coalesces tensors of the CPU only (unsupported device type cuda)", "cuda"),
    ),
    "coalescing_manager": (
        Lack("gloo", "gloo coalesces calls on the CPU only (does not implement startCoalescing)", "cuda"),
    ),
    "complex_gather": (
        Lack("gloo", "gloo gathers no complex numbers (Invalid scalar type)"),
        # torch views complex tensors as pairs of real ones in its other collectives, in gather it does not.
        Lack("nccl", "NCCL has no complex type, and torch's gather passes it one (Unconvertible NCCL type)"),
    ),
    "uneven_all_gather": (_GLOO_EQUAL,),
    "uneven_all_to_all_list": (_GLOO_EQUAL,),
    "stacked_single": (Lack("gloo", "gloo checks the shape of the one-tensor forms (concatenated only)"),),
    "bitwise_reduce": (Lack("nccl", "NCCL has no bitwise reductions"),),
    "avg": (Lack("gloo", "gloo has no AVG reduction in all releases that are supported"),),
    "premul_sum": (Lack("gloo", "PREMUL_SUM is an operation of NCCL"),),
    "quantisation_hooks": (
        Lack("gloo", "torch's quantisation hooks read a future as NCCL fills it, a list inside a list"),
    ),
    "high_priority_stream": (Lack("gloo", "gloo has no streams"),),
    "accelerator_events": (
        Lack("gloo", "the CPU build of torch has no events (cpu backend doesn't support events)", "cpu"),
    ),
}


def lacks(features: tuple[str, ...], backend: str, device: str) -> str:
    """Why a test that needs the features cannot run on the backend; empty when it can.

    Raises:
        KeyError: a name is not a feature of the table.
    """
    for feature in features:
        for lack in LACKS[feature]:
            if lack.backend == backend and lack.device in ("", device):
                return f"needs {feature}: {lack.reason}"
    return ""
