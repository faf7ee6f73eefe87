"""Contexts: their names, their records, and that nothing of them is left anywhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc

from disttest.testing import World

from ..ranks import exchange, meet
from ..rpc.agents import agent, until, worker
from ..rpc.shim import autograd_counts
from . import remote, shim
from .tensors import Maker, both, dense, total

pytestmark = [pytest.mark.world_size(2, 4), pytest.mark.device("cpu")]


def _is_known(identity: int) -> bool:
    try:
        shim.retrieve(identity)
    except RuntimeError:
        return False
    return True


@pytest.mark.covers("AG-01")
def test_identity_names_its_rank(agents: World) -> None:
    """The top 16 bits are the rank, the others count."""
    assert shim.largest_identity() == (2**48 - 1) + (agents.rank << 48)
    seen = set()
    for _ in range(200):
        with dist_autograd.context() as identity:
            assert shim.retrieve(identity)._context_id() == identity
            assert shim.current()._context_id() == identity
            assert identity >> 48 == agents.rank
        with pytest.raises(RuntimeError, match=f"Could not find autograd context with id: {identity}"):
            shim.retrieve(identity)
        seen.add(identity)
    assert len(seen) == 200
    with pytest.raises(RuntimeError):
        shim.current()


@pytest.mark.covers("AG-02")
def test_contexts_do_not_nest(context: int) -> None:
    """Entering a second context in the same thread raises, and the first stays the current one."""
    nested = dist_autograd.context()
    with pytest.raises(RuntimeError, match="Already have an autograd context id for this thread"):
        nested.__enter__()
    assert shim.current()._context_id() == context


def _to_everybody(world: World, function: Any, *args: Any) -> None:
    for rank in range(world.size):
        if rank != world.rank:
            rpc.rpc_sync(worker(rank), function, args=args)


def _contexts_are_gone(world: World, identities: list[int]) -> None:
    until(lambda: not any(map(_is_known, identities)), f"contexts to be forgotten by rank {world.rank}", 10)


@both  # covers: AG-17 AG-18 AG-76 AG-77
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
def test_context_is_forgotten_by_every_rank(agents: World, make: Maker, grad: bool) -> None:
    """A Python call makes the context known to every rank, gradients or not; after its block none of them knows it."""
    with dist_autograd.context() as identity:
        _to_everybody(agents, remote.add, make(grad=grad), make(grad=grad))
        identities = exchange(agents, identity)
        assert all(map(_is_known, identities)), "a Python call carries its context along, gradients or not"
        meet(agents)
    assert not _is_known(identity)
    meet(agents)
    _contexts_are_gone(agents, identities)


@pytest.mark.covers("AG-19")
def test_context_without_tensors_is_forgotten(agents: World) -> None:
    """After calls with plain numbers too, no rank knows the context once its block has ended."""
    with dist_autograd.context() as identity:
        _to_everybody(agents, remote.add_numbers, 1, 2)
        identities = exchange(agents, identity)
        meet(agents)
    meet(agents)
    _contexts_are_gone(agents, identities)


@pytest.mark.world_size(3, 4)
@both  # covers: AG-20 AG-78
def test_context_of_a_nested_call_is_forgotten(agents: World, make: Maker) -> None:
    """The rank at the end of the chain never heard of the context from the one that made it."""
    first, second = ((agents.rank + step) % agents.size for step in (1, 2))
    with dist_autograd.context() as identity:
        rpc.rpc_sync(worker(first), remote.add_along, args=(make(), make(), [second]))
        identities = exchange(agents, identity)
        assert _is_known(identities[(agents.rank - 2) % agents.size])
        meet(agents)
    meet(agents)
    _contexts_are_gone(agents, identities)


@pytest.mark.covers("AG-21")
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
def test_context_knows_whom_it_called(agents: World, context: int, grad: bool) -> None:
    """A new context knows no other rank; after calls to all others it knows exactly those, gradients or not."""
    assert shim.known_ranks(shim.current()) == set()
    _to_everybody(agents, remote.add, dense(grad=grad), dense(grad=grad))
    assert shim.known_ranks(shim.current()) == set(range(agents.size)) - {agents.rank}


@pytest.mark.covers("AG-22")
def test_profile_of_backward_has_both_ends(agents: World, context: int) -> None:
    """The profile has one sending and one receiving event, each shorter than the backward event as a whole."""
    left, right = dense(), dense(seed=1)
    loss = total(rpc.rpc_sync(worker((agents.rank + 1) % agents.size), torch.add, args=(left, right)))
    with torch.autograd.profiler.profile() as recorded:
        dist_autograd.backward(context, [loss])
    events = recorded.key_averages()
    whole = next(e for e in events if e.key == "torch::distributed::autograd::backward")
    for part in ("SendRpcBackward", "RecvRpcBackward"):
        found = [event for event in events if part in event.key]
        assert [event.count for event in found] == [1], part
        assert whole.cpu_time_total > found[0].cpu_time_total


@pytest.mark.covers("AG-52")
def test_counters_follow_contexts_and_passes(agents: World) -> None:
    """The counters are 0 before, between 1 and the world's size during backward, and 0 again when all contexts have ended."""
    seen: list[int] = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append(autograd_counts()["current_backward_passes"])
            return gradient

    assert autograd_counts() == {"autograd_contexts": 0, "current_backward_passes": 0}
    meet(agents)
    with dist_autograd.context() as identity:
        there = worker((agents.rank + 1) % agents.size)
        result = rpc.rpc_sync(there, torch.matmul, args=(Look.apply(dense()), dense()))
        dist_autograd.backward(identity, [result.sum()])
        assert len(seen) == 1
        assert 1 <= seen[0] <= agents.size
        assert 1 <= autograd_counts()["autograd_contexts"] <= agents.size
        meet(agents)
    until(lambda: not any(autograd_counts().values()), "the counters to return to 0")


@pytest.mark.fresh_world
@pytest.mark.covers("AG-50")
def test_context_released_during_backward(world: World) -> None:
    """An error, no crash, and other threads of this rank go on calling."""

    class Release(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor, identity: int) -> torch.Tensor:
            ctx.identity = identity
            return tensor.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            shim.release(ctx.identity)
            return gradient, None

    there = worker((world.rank + 1) % world.size)
    with agent(world, graceful=False):
        with pytest.raises(RuntimeError, match="autograd context"), dist_autograd.context() as identity:
            result = Release.apply(dense(), identity)
            for _ in range(20):
                result = rpc.rpc_sync(there, torch.add, args=(result, result))
            dist_autograd.backward(identity, [result.sum()])
            dist_autograd.get_gradients(identity)
        with ThreadPoolExecutor(1) as other_thread:
            assert other_thread.submit(rpc.rpc_sync, there, remote.add_numbers, args=(1, 2)).result() == 3
        meet(world)
