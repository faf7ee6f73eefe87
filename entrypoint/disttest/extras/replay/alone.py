"""torch.distributed in a process without peers: groups of any size, and stores without a server.

The backend of a group is gloo, on a device that connects to a peer at its first message. Everything that a test can ask
of the backend is therefore as in the recorded run, while calls never reach it. A direct call of the backend would wait
for peers, so it is refused.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch._C._distributed_c10d import Backend as _Backend
from torch.distributed import distributed_c10d as c10d

_dist: Any = dist
_STORES = ("TCPStore", "FileStore")
_ISSUING = (
    *("allgather", "allreduce", "allreduce_coalesced", "alltoall", "alltoall_base", "barrier", "broadcast"),
    *("gather", "monitored_barrier", "recv", "recv_anysource", "reduce", "reduce_scatter", "scatter", "send"),
    *("_allgather_base", "_reduce_scatter_base", "allgather_coalesced"),
    *(
        "all_gather_single",
        "all_to_all_single",
        "gather_into_tensor",
        "gather_single",
        "reduce_scatter_single",
    ),
)


class _Store(_dist.HashStore):  # type: ignore[misc]
    """Replaces stores of any kind; its answers come from the recording."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__()
        given = [*arguments, named.get("host_name", ""), named.get("port", 0)]
        self.host, self.port = given[0], given[1]


class _Gloo(type):
    """Type of the gloo backend whose instances connect to no peer until they are called."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _real)

    def __getattr__(cls, name: str) -> Any:
        return getattr(_real, name)

    def __call__(
        cls, _store: Any, rank: int, size: int, timeout: timedelta | None = None, **_named: Any
    ) -> Any:
        # Groups of torch 2.15 and later ask the backend for rank and size. torch's ``fake`` backend was tried: it has
        # another name, and no sequence numbers.
        # Options of gloo are private (torch 2.9 to 2.15): https://github.com/pytorch/pytorch/pull/56531
        options = _real._Options()  # noqa: SLF001
        options._devices = [_real.create_device(hostname="127.0.0.1", lazy_init=True)]  # noqa: SLF001
        if timeout is not None:
            options._timeout = timeout  # noqa: SLF001
        return _real(_dist.HashStore(), rank, size, options)


_real: Any = getattr(c10d, "ProcessGroupGloo", None)


class ProcessGroupGloo(metaclass=_Gloo):
    """Replaces gloo's backend."""


def _refuse(name: str) -> Any:
    def method(self: object, *_arguments: object, **_named: object) -> None:
        del self
        raise RuntimeError(
            f"Backend.{name} was called without its process group; such calls are not recorded and cannot be replayed"
        )

    return method


@contextlib.contextmanager
def without_peers() -> Iterator[None]:
    """Within the context, groups and stores are made without peers."""
    with contextlib.ExitStack() as patches:
        for name in list(sys.modules):
            if name.startswith("torch.distributed") or name == "torch._C._distributed_c10d":
                _put(patches, sys.modules[name])
        for name in filter(vars(_Backend).__contains__, _ISSUING):
            patches.enter_context(mock.patch.object(_Backend, name, _refuse(name)))
        yield


def _put(patches: contextlib.ExitStack, module: Any) -> None:
    """Patch the replacements into a module that has imported the originals."""
    for name in (*_STORES, "ProcessGroupGloo"):
        found = vars(module).get(name)
        if found is not None and isinstance(found, type):
            new = ProcessGroupGloo if name == "ProcessGroupGloo" else _Store
            patches.enter_context(mock.patch.object(module, name, new))
