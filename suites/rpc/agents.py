"""Agents: start and stop them, and wait for their background work."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed.rpc as rpc

from disttest.testing import World

from ..ranks import meet
from . import shim

LIMIT_S = 20.0
"""How long a wait for the background may take before the test says that it failed."""
_PAUSE_S = 0.005


def worker(rank: int) -> str:
    """The name of a rank's agent."""
    return f"worker{rank}"


def start(world: World, *, backend: str = "TENSORPIPE", options: Any = None) -> None:
    """Start this rank's agent."""
    rpc.init_rpc(
        worker(world.rank),
        backend=shim.backend_type(backend),
        rank=world.rank,
        world_size=world.size,
        rpc_backend_options=options,
    )
    if backend != "TENSORPIPE":
        meet(world)  # only TensorPipe's own start returns when every agent can hear


@contextmanager
def agent(
    world: World, *, backend: str = "TENSORPIPE", options: Any = None, graceful: bool = True
) -> Iterator[Any]:
    """An agent on every rank, ended when all ranks are done; references left over are an error."""
    start(world, backend=backend, options=options)
    yield rpc
    with shim.leaks_are_errors():
        rpc.shutdown(graceful=graceful)


def until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Return when the condition holds.

    Raises:
        AssertionError: it did not within the limit.
    """
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s:g} s in vain: {what}"
        time.sleep(_PAUSE_S)


def until_flushed(limit_s: float = LIMIT_S) -> None:
    """Return when no reference waits for its owner's word; it may come after ``to_here`` has returned."""

    def flushed() -> bool:
        counts = shim.rref_counts()
        return not counts["pending_users"] and not counts["pending_futures"]

    until(flushed, "pending users and futures", limit_s)


def until_counts(rank: int, *, owners: int, forks: int, limit_s: float = LIMIT_S) -> None:
    """Return when a rank owns that many references, with that many forks in all."""
    seen: dict[str, int] = {}

    def agrees() -> bool:
        seen.update(rpc.rpc_sync(worker(rank), shim.rref_counts, timeout=5))
        return (seen["owner_rrefs"], seen["forks"]) == (owners, forks)

    until(agrees, f"{owners} owners and {forks} forks on rank {rank}", limit_s)


def until_unreachable(rank: int, limit_s: float = LIMIT_S) -> str:
    """Call a rank until that fails; the text of the failure."""
    texts: list[str] = []

    def fails() -> bool:
        try:
            rpc.rpc_sync(worker(rank), nothing, timeout=5)
        except RuntimeError as error:
            texts.append(str(error))
        return bool(texts)

    until(fails, f"rank {rank} to become unreachable", limit_s)
    return texts[0]


def nothing() -> None:
    """The smallest thing to ask for."""


def assert_clean(world: World) -> None:
    """No rank holds a reference or an autograd context any more: the next test finds the agents as new."""
    meet(world)
    gc.collect()
    until(lambda: not any(_left().values()), f"references and contexts to go; left: {_left()}", 10.0)
    meet(world)


def _left() -> dict[str, int]:
    return {**shim.rref_counts(), **shim.autograd_counts()}
