"""Which functions a call records: on the caller, on those that pass it on, and where it runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd

from disttest.testing import World

from ..ranks import exchange
from . import remote, shim
from .calls import by_reference, sync
from .tensors import Maker, assert_same, both, total

pytestmark = [pytest.mark.world_size(4), pytest.mark.device("cpu")]


def in_both_ways(function: Any) -> Any:
    """Run the test for calls that wait and calls by reference, dense and sparse."""
    return pytest.mark.parametrize("call", [sync, by_reference])(both(function))


def _assert_graph_of_caller(send: Any, receive: Any, left: Any, right: Any, result: Any) -> None:
    assert shim.names(send) == [shim.LEAF, shim.LEAF]
    assert [index for _, index in send.next_functions] == [0, 0]
    for (leaf, _), tensor in zip(send.next_functions, (left, right), strict=True):
        assert_same(leaf.variable, tensor)
    assert result.grad_fn == receive


def _assert_graph_where_it_ran(context: Any) -> None:
    (send,) = shim.sends(context)
    assert shim.names(send) == ["AddBackward0"]
    _assert_added_received(send.next_functions[0][0])


def _assert_added_received(added: Any) -> None:
    (first, _), (second, _) = added.next_functions
    assert first.name() == shim.RECEIVE
    assert first == second, "both arguments came with one message"


def _assert_graph_of_forwarder(context: Any) -> None:
    """One way: the two arguments passed on; the other way: the result passed back."""
    onward, back = sorted(shim.sends(context), key=lambda send: -len(send.next_functions))
    assert shim.names(onward) == [shim.RECEIVE, shim.RECEIVE]
    assert onward.next_functions[0][0] == onward.next_functions[1][0]
    assert shim.names(back) == [shim.RECEIVE]
    assert back.next_functions[0][0] != onward.next_functions[0][0]


@pytest.mark.parametrize("function", [torch.add, remote.add], ids=["builtin", "python"])
@in_both_ways  # covers: AG-03 AG-64 AG-05 AG-66
# covers: AG-04 AG-06 AG-65 AG-67
def test_graph_of_one_call(agents: World, context: int, function: Any, call: Any, make: Maker) -> None:
    """The caller records a send from its two leaves and a receive that made the result; the callee an addition between both."""
    left, right = make(seed=1), make(seed=2)
    result = call((agents.rank + 1) % agents.size, function, left, right)
    assert_same(result.detach(), (left + right).detach())
    identities = exchange(agents, context)
    mine = shim.current()
    assert mine._context_id() == context
    (send,), (receive,) = shim.sends(mine), shim.receives(mine)
    _assert_graph_of_caller(send, receive, left, right, result)
    _assert_graph_where_it_ran(shim.retrieve(identities[agents.rank - 1]))


@in_both_ways  # covers: AG-07 AG-68 AG-08 AG-69
def test_graph_of_nested_calls(agents: World, context: int, call: Any, make: Maker) -> None:
    """This rank is all four: caller, first and second forwarder, and the one that adds."""
    first, second, third = ((agents.rank + step) % agents.size for step in (1, 2, 3))
    left, right = make(seed=1), make(seed=2)
    result = call(first, remote.add_along, left, right, [second, third])
    identities = exchange(agents, context)
    (send,), (receive,) = shim.sends(shim.current()), shim.receives(shim.current())
    _assert_graph_of_caller(send, receive, left, right, result)
    _assert_graph_of_forwarder(shim.retrieve(identities[agents.rank - 1]))
    _assert_graph_of_forwarder(shim.retrieve(identities[agents.rank - 2]))
    _assert_graph_where_it_ran(shim.retrieve(identities[agents.rank - 3]))


@in_both_ways  # covers: AG-09 AG-70 AG-10 AG-71
def test_graph_of_a_call_that_comes_back(agents: World, context: int, call: Any, make: Maker) -> None:
    """The next rank asks the caller itself to add."""
    left, right = make(seed=1), make(seed=2)
    result = call((agents.rank + 1) % agents.size, remote.add_along, left, right, [agents.rank])
    identities = exchange(agents, context)
    mine = shim.current()
    sends, receives = shim.sends(mine), shim.receives(mine)
    assert (len(sends), len(receives)) == (2, 2)
    out, back = sorted(sends, key=lambda send: -len(send.next_functions))
    (receive,) = [candidate for candidate in receives if candidate == result.grad_fn]
    _assert_graph_of_caller(out, receive, left, right, result)
    assert shim.names(back) == ["AddBackward0"]
    _assert_added_received(back.next_functions[0][0])
    _assert_graph_of_forwarder(shim.retrieve(identities[agents.rank - 1]))


@in_both_ways  # covers: AG-11 AG-72 AG-12 AG-73
def test_no_gradients_no_graph(agents: World, context: int, call: Any, make: Maker) -> None:
    """The context travels with Python functions and references all the same."""
    there = (agents.rank + 1) % agents.size
    call(there, torch.add, make(grad=False), make(grad=False))
    call(there, remote.add, make(grad=False), make(grad=False))
    identities = exchange(agents, context)
    for identity in (context, identities[agents.rank - 1]):
        recorded = shim.retrieve(identity)
        assert (shim.sends(recorded), shim.receives(recorded)) == ([], [])


@in_both_ways  # covers: AG-15 AG-74 AG-16 AG-75
def test_tensors_inside_a_list_are_found(agents: World, context: int, call: Any, make: Maker) -> None:
    """Of a list of ten tensors, the send function has exactly the five that want a gradient, in order."""
    tensors = [make(seed=number, grad=number % 2 == 0) for number in range(10)]
    there = (agents.rank + 1) % agents.size
    result = call(there, torch.stack, tensors)
    assert_same(result.detach(), torch.stack(tensors).detach())
    send = shim.sends(shim.current())[0]
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    assert shim.names(send) == [shim.LEAF] * len(wanted)
    for (leaf, _), tensor in zip(send.next_functions, wanted, strict=True):
        assert_same(leaf.variable, tensor)
    assert shim.known_ranks(shim.current()) == {there}


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(sync, marks=pytest.mark.covers("AG-13")),
        pytest.param(by_reference, marks=pytest.mark.covers("AG-14")),
    ],
)
def test_gradient_of_what_the_other_side_returned(agents: World, context: int, call: Any) -> None:
    """The gradient of a tensor that the callee owned and returned is on the callee, and the caller has none."""
    result = call((agents.rank + 1) % agents.size, remote.give_own_tensor)
    dist_autograd.backward(context, [result.sum()])
    identities = exchange(agents, context)
    gradients = dist_autograd.get_gradients(identities[agents.rank - 1])
    assert list(gradients) == [remote.own_tensor] or len(gradients) == 1
    assert_same(gradients[remote.own_tensor], torch.ones(3, 3))
    assert dist_autograd.get_gradients(context) == {}


@both  # covers: AG-04 AG-65
def test_context_ends_with_its_block(agents: World, make: Maker) -> None:
    """After the block its context cannot be retrieved, and the thread has no current one."""
    with dist_autograd.context() as identity:
        result = sync((agents.rank + 1) % agents.size, remote.add, make(), make())
        dist_autograd.backward(identity, [total(result)])
    with pytest.raises(RuntimeError):
        shim.retrieve(identity)
    with pytest.raises(RuntimeError):
        shim.current()
