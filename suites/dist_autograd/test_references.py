"""Gradients of values behind references: parameter servers, trainers, embeddings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import Tensor

from disttest.testing import World

from ..ranks import meet
from ..rpc import remote as rpc_remote
from ..rpc import scripted
from ..rpc.agents import worker
from . import remote
from .tensors import Maker, assert_gradients, assert_same, both, dense, local_gradients, total

pytestmark = [pytest.mark.world_size(2, 4), pytest.mark.device("cpu")]


def _make_leaf(make: Maker) -> Tensor:
    return make(seed=1)


@pytest.mark.parametrize(
    ("placed", "ids"),
    [
        pytest.param("next", None, id="callee owns it"),
        pytest.param("first", None, id="all use one owner"),
        pytest.param("nested", None, id="a third rank owns it"),
    ],
)
@both  # covers: AG-27 AG-28 AG-29 AG-83 AG-82 AG-84
def test_gradient_arrives_at_the_owner(
    agents: World, context: int, make: Maker, placed: str, ids: None
) -> None:
    """The referred value has its gradient in the caller's context on its owner, and the other operand has its own here."""
    following = (agents.rank + 1) % agents.size
    owner = {"next": following, "first": 0, "nested": (agents.rank + 2) % agents.size}[placed]
    right = make(seed=2)
    expected = local_gradients(total(torch.add(make(seed=1), right)), [right])
    rref = rpc.remote(worker(owner), _make_leaf, args=(make,))
    if placed == "nested":
        args = (rref, right, owner)
        result = rpc.rpc_sync(worker(following), remote.add_to_reference_elsewhere, args=args)
    else:
        result = rpc.rpc_sync(worker(owner), remote.add_to_reference, args=(rref, right))
    dist_autograd.backward(context, [total(result)])
    found = dist_autograd.get_gradients(context)
    assert_same(found[right], expected[0])
    assert rpc.rpc_sync(worker(owner), remote.owner_has_gradient, args=(context, rref, expected[0]))
    meet(agents)
    del rref, result, found


def test_backward_of_a_reference(agents: World, context: int) -> None:
    """``RRef.backward``: on the owner itself, and from the rank that holds the reference."""
    leaf = dense(seed=3)
    rref = rpc.remote(worker((agents.rank + 1) % agents.size), _summed, args=(leaf,))
    rref.backward(context)
    assert_gradients(context, [leaf], [2 * leaf.detach()])
    own = dense(seed=4)
    rpc.RRef(own.pow(2).sum()).backward()
    assert_same(own.grad, 2 * own.detach())
    with pytest.raises(RuntimeError, match="Could not find autograd context with id"):
        rref.backward(context + 1000)
    meet(agents)
    del rref


def _summed(tensor: Tensor) -> Tensor:
    return tensor.pow(2).sum()


def _train(server: Any, own: Tensor, key: str, is_scripted: bool) -> None:
    there = server.owner()
    with dist_autograd.context() as identity:
        function = scripted.script(scripted.add_referred) if is_scripted else remote.add_to_reference
        result = rpc.rpc_sync(there, function, args=(server, own))
        dist_autograd.backward(identity, [total(result)])
        assert_same(
            dist_autograd.get_gradients(identity)[own], local_gradients(total(own + own), [own])[0] / 2
        )
        rpc.rpc_sync(there, _report, args=(key, identity))
        rpc.rpc_sync(there, rpc_remote.wait_for, args=(key,))


_reports: dict[str, list[int]] = {}


def _report(key: str, identity: int) -> None:
    _reports.setdefault(key, []).append(identity)


@pytest.mark.parametrize("is_scripted", [False, True], ids=["python", "scripted"])
@both  # covers: AG-30 AG-31 AG-85
def test_trainers_share_a_parameter_server(agents: World, make: Maker, is_scripted: bool) -> None:
    """Every rank serves the others; each trainer's gradients are in its own context, on the server."""
    from ..rpc.agents import until

    if is_scripted and make is not dense:
        pytest.skip("a scripted reference is typed as a dense tensor here")
    if is_scripted:
        scripted.script(scripted.add_referred)
        meet(agents)
    parameter = make(seed=1)
    key = f"{make.__name__} {is_scripted} {agents.rank}"
    others = [rank for rank in range(agents.size) if rank != agents.rank]
    server = rpc.RRef(parameter)
    futures = [
        rpc.rpc_async(worker(rank), _train, args=(server, make(seed=2), key, is_scripted)) for rank in others
    ]
    until(lambda: len(_reports.get(key, ())) == len(others), "the trainers to report")
    expected = local_gradients(total(torch.add(parameter, make(seed=2))), [parameter])[0]
    for identity in _reports.pop(key):
        assert_same(dist_autograd.get_gradients(identity)[parameter], expected)
    rpc_remote.open_gate(key)
    torch.futures.wait_all(futures)
    meet(agents)
    del server, futures


@pytest.mark.covers("AG-63")
def test_backward_goes_on_in_the_thread_of_the_remote_call(agents: World, context: int) -> None:
    """The value is not there yet when it is asked for: another thread continues, and knows the context."""
    left, right = dense(grad=False, seed=1), dense(grad=False, seed=2)
    there = worker((agents.rank + 1) % agents.size)
    rref = rpc.remote(there, remote.slow_sum, args=(left, right))
    dist_autograd.backward(context, [rref.to_here().sum()])
    assert rpc.rpc_sync(there, remote.owner_has_gradient, args=(context, rref, torch.ones(3, 3)))
    meet(agents)
    del rref


class Table:
    """An embedding that lives on one rank."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.bag = torch.nn.EmbeddingBag(16, 16, mode="sum", sparse=True)

    def look_up(self, places: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
        """Weighted sums of rows."""
        return self.bag(places, offsets, weights)

    def gradient(self, context: int) -> Tensor:
        """Of the rows, in a context."""
        return dist_autograd.get_gradients(context)[self.bag.weight]


@pytest.mark.covers("AG-94")
def test_embedding_on_another_rank_gets_a_sparse_gradient(agents: World, context: int) -> None:
    """The owner's gradient is sparse and equal to the local one; a second pass doubles it."""
    places, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4])
    weights = torch.rand(8, requires_grad=True)
    here = Table()
    expected = torch.autograd.grad(here.look_up(places, offsets, weights).sum(), here.bag.weight)[0]
    table = rpc.remote(worker((agents.rank + 1) % agents.size), Table)
    loss = table.rpc_sync().look_up(places, offsets, weights).sum()
    for passes in (1, 2):
        dist_autograd.backward(context, [loss], retain_graph=True)
        assert_same(table.rpc_sync().gradient(context), expected * passes)
    meet(agents)
    del table, loss
