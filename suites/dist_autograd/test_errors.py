"""Errors in backward: wrong arguments, exceptions on the way, ranks that are gone."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc

from disttest.testing import World

from ..ranks import meet
from ..rpc.agents import agent, start, until_unreachable, worker
from . import remote
from .calls import sync
from .tensors import assert_gradients, dense

pytestmark = [pytest.mark.world_size(2, 4), pytest.mark.device("cpu")]


@pytest.mark.covers("AG-41", "AG-39")
def test_wrong_arguments_are_named(agents: World, context: int) -> None:
    """No or wrong roots and an unknown context each raise an error that names the fault, and the context gets no gradient."""
    leaf = dense()
    for arguments, kind, message in (
        ((None, None), TypeError, "incompatible function arguments"),
        ((context, None), TypeError, "incompatible function arguments"),
        ((context, []), RuntimeError, "No tensors provided for gradient computation"),
        ((context, [torch.ones(1)]), RuntimeError, "requires_grad not set on"),
        ((context, [leaf + 1]), RuntimeError, "is not a scalar, all roots need to be scalar"),
        (
            (context, [torch.ones(1, requires_grad=True)]),
            RuntimeError,
            "does not have a valid gradient function",
        ),
        ((100, [leaf.sum()]), RuntimeError, "Could not find autograd context with id: 100"),
    ):
        with pytest.raises(kind, match=message):
            dist_autograd.backward(*arguments)
    assert dist_autograd.get_gradients(context) == {}


@pytest.mark.covers("AG-23")
def test_error_of_a_call_inside_a_context(agents: World, context: int) -> None:
    """A remote operator's error is raised at the caller, and the same context then serves a good call and its backward."""
    with pytest.raises(RuntimeError, match=r"size|shape"):
        sync((agents.rank + 1) % agents.size, torch.matmul, torch.rand(3, 3), torch.rand(6, 6))
    leaf = dense()
    dist_autograd.backward(context, [sync((agents.rank + 1) % agents.size, torch.mul, leaf, 2).sum()])
    assert_gradients(context, [leaf], [torch.full((3, 3), 2.0)])


@pytest.mark.fresh_world  # the part of the graph that backward never reached keeps waiting for it
@pytest.mark.covers("AG-37")
def test_error_in_backward_names_the_rank(world: World) -> None:
    """The error of a function in the middle of the graph is raised by backward, with the number of the node where it arose."""
    there = (world.rank + 1) % world.size
    with agent(world, graceful=False), dist_autograd.context() as context:
        broken = remote.FailInBackward.apply(sync(there, torch.add, dense(), dense(seed=1)))
        value = sync(there, torch.mul, broken, broken)
        value = sync(there, torch.matmul, value, value)
        with pytest.raises(RuntimeError, match=r"Error on Node [0-9]+: .*broken on purpose in backward"):
            dist_autograd.backward(context, [sync(there, torch.div, value, value).sum()])
        meet(world)


@pytest.mark.world_size(3, 4)
@pytest.mark.covers("AG-47")
def test_error_in_backward_of_a_nested_call_reaches_the_caller(agents: World, context: int) -> None:
    """An exception in backward on the third rank of a chain is raised at the rank that began."""
    first, second = ((agents.rank + step) % agents.size for step in (1, 2))
    result = sync(first, remote.fail_along, dense(), dense(seed=1), [second])
    with pytest.raises(RuntimeError, match="broken on purpose in backward"):
        dist_autograd.backward(context, [result.sum()])
    meet(agents)


@pytest.mark.covers("AG-57")
def test_graph_works_again_when_its_error_is_gone(agents: World, context: int) -> None:
    """Twenty failed passes leave nothing in the gradient; the next twenty over the same graph add up exactly."""
    leaf = dense()
    value = remote.FailInBackward.apply(sync((agents.rank + 1) % agents.size, torch.mul, leaf, 2))
    try:
        for _ in range(20):
            with pytest.raises(RuntimeError, match="broken on purpose in backward"):
                dist_autograd.backward(context, [value.sum()], retain_graph=True)
        meet(agents)
        remote.FailInBackward.broken = False
        for _ in range(20):
            dist_autograd.backward(context, [value.sum()], retain_graph=True)
    finally:
        remote.FailInBackward.broken = True
    assert_gradients(context, [leaf], [torch.full((3, 3), 40.0)])
    meet(agents)


@pytest.mark.fresh_world
@pytest.mark.covers("AG-36")
def test_unused_answer_keeps_backward_waiting(world: World) -> None:
    """Known behaviour: an answer that the loss does not use never sends its gradient back."""
    start(world)
    there = (world.rank + 1) % world.size

    def wait_in_vain() -> None:
        with dist_autograd.context() as identity:
            leaf = dense()
            used = sync(there, torch.add, leaf, leaf)
            sync(there, torch.mul, used, used)
            dist_autograd.backward(identity, [used.sum()])

    thread = threading.Thread(target=wait_in_vain, daemon=True)
    thread.start()
    thread.join(1.5)
    assert thread.is_alive()
    meet(world)


@pytest.mark.fresh_world
@pytest.mark.covers("AG-38")
def test_backward_through_a_rank_that_left(world: World) -> None:
    """Odd ranks leave; backward on the even ones says so."""
    start(world)
    with dist_autograd.context() as identity:
        there = (world.rank + 1) % world.size
        result = sync(there, torch.add, dense(), dense(seed=1))
        meet(world)
        if world.rank % 2 == 0:
            until_unreachable(there)
            with pytest.raises(RuntimeError, match="tensorpipe"):
                dist_autograd.backward(identity, [result.sum()])
            rpc.shutdown(graceful=False)
        else:
            rpc.shutdown(graceful=False)
    meet(world)


@pytest.mark.world_size(4)
@pytest.mark.fresh_world
@pytest.mark.covers("AG-48")
def test_backward_of_a_nested_call_through_a_rank_that_left(world: World) -> None:
    """Rank 3, the last of a chain, has left: backward on rank 0 raises the transport's error."""
    start(world)
    with dist_autograd.context() as identity:
        value = sync(1, remote.add_along, dense(), dense(seed=1), [2, 3]) if world.rank == 0 else None
        meet(world)
        if world.rank == 3:
            rpc.shutdown(graceful=False)
        elif value is not None:
            rpc.rpc_sync(worker(2), until_unreachable, args=(3,))
            with pytest.raises(RuntimeError, match="tensorpipe"):
                dist_autograd.backward(identity, [value.sum()])
        meet(world)
        if world.rank != 3:
            rpc.shutdown(graceful=False)
