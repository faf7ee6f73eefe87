"""Where this suite touches names that torch does not promise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..private import find, private

RETRIED = ["RREF_FORK_REQUEST", "RREF_CHILD_ACCEPT", "RREF_USER_DELETE", "CLEANUP_AUTOGRAD_CONTEXT_REQ"]
"""The messages that the protocol sends again when they are lost."""


def missing() -> str:
    """Why torch cannot do RPC here; empty when it can."""
    import torch.distributed as dist

    if not dist.is_available():
        return "this torch was built without torch.distributed"
    from torch.distributed import rpc

    if not rpc.is_available():
        return "this torch was built without RPC"
    return "" if hasattr(rpc, "TensorPipeRpcBackendOptions") else "this torch was built without TensorPipe"


def missing_torchscript() -> str:
    """Why functions cannot be scripted here; empty when they can."""
    enabled = find("torch.jit._state._enabled.enabled")
    return "" if enabled is True else "TorchScript is not available (no torch.jit, or PYTORCH_JIT=0)"


def backend_type(name: str) -> Any:
    """A kind of agent by name. Looked up late: registering one replaces the enumeration."""
    return private("torch.distributed.rpc.backend_registry.BackendType")[name]


def faulty_options(**overrides: Any) -> Any:
    """Options of an agent that fails three sends of each retried message, unless told otherwise."""
    options = private("torch.distributed.rpc._testing.FaultyTensorPipeRpcBackendOptions")
    defaults: dict[str, Any] = {
        "init_method": "env://",
        "num_worker_threads": 8,
        "rpc_timeout": 60.0,
        "messages_to_fail": RETRIED,
        "messages_to_delay": {},
        "num_fail_sends": 3,
    }
    return options(**{**defaults, **overrides})


def rref_counts() -> dict[str, int]:
    """Counters of this process's references: owner_rrefs, forks, pending_users, pending_futures, …"""
    info = private("torch.distributed.rpc._rref_context_get_debug_info")()
    return {name.removeprefix("num_"): int(value) for name, value in info.items()}


def set_default_timeout(seconds: float) -> None:
    """The limit of calls that name none."""
    private("torch.distributed.rpc._set_rpc_timeout")(seconds)


@contextmanager
def leaks_are_errors(strict: bool = True) -> Iterator[None]:
    """Whether a graceful shutdown fails when references are left."""
    api = private("torch.distributed.rpc.api")
    before = api._ignore_rref_leak
    api._ignore_rref_leak = not strict
    try:
        yield
    finally:
        api._ignore_rref_leak = before


def autograd_counts() -> dict[str, int]:
    """Counters of distributed autograd in this process: autograd_contexts, current_backward_passes."""
    info = private("torch.distributed.autograd._get_debug_info")()
    return {name.removeprefix("num_"): int(value) for name, value in info.items()}


def profile() -> Any:
    """A profiler that follows calls to other ranks; only torch's older one does."""
    return private("torch.autograd.profiler_legacy.profile")()
