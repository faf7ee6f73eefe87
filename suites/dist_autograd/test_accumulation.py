"""Backward again and again, inside each other and side by side; hooks; buffers copied or taken over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import Tensor

from disttest.testing import World

from ..rpc.agents import worker
from . import remote
from .calls import sync
from .tensors import Maker, assert_gradients, assert_same, both, dense, total

pytestmark = [pytest.mark.world_size(2, 4), pytest.mark.device("cpu")]


@pytest.mark.covers("AG-54")
def test_passes_add_up(agents: World, context: int) -> None:
    """Two passes over a kept graph leave twice the gradient of one in the context."""
    leaves = [dense(seed=1), dense(seed=2)]
    there = (agents.rank + 1) % agents.size
    loss = sync(there, torch.mul, *leaves).sum()
    for _ in range(2):
        dist_autograd.backward(context, [loss], retain_graph=True)
    one, other = (leaf.detach() for leaf in leaves)
    assert_gradients(context, leaves, [2 * other, 2 * one])


@pytest.mark.world_size(3, 4)
@both  # covers: AG-55 AG-90
def test_nested_passes_add_up(agents: World, context: int, make: Maker) -> None:
    """A call that goes through a second rank to a third: the second pass doubles each gradient."""
    leaves = [make(seed=1), make(seed=2)]
    path = [(agents.rank + 2) % agents.size]
    loss = total(sync((agents.rank + 1) % agents.size, remote.add_along, *leaves, path))
    dist_autograd.backward(context, [loss], retain_graph=True)
    once = [dist_autograd.get_gradients(context)[leaf].clone() for leaf in leaves]
    dist_autograd.backward(context, [loss])
    assert_gradients(context, leaves, [gradient + gradient for gradient in once])


@both  # covers: AG-56 AG-93
def test_many_passes_over_one_graph(agents: World, context: int, make: Maker) -> None:
    """After 300 passes over the graph of one addition, the largest entry of each gradient is 300."""
    leaves = [make(seed=1), make(seed=2)]
    loss = total(sync((agents.rank + 1) % agents.size, torch.add, *leaves))
    passes = 300
    for _ in range(passes):
        dist_autograd.backward(context, [loss], retain_graph=True)
    found = dist_autograd.get_gradients(context)
    for leaf in leaves:
        gradient = found[leaf].to_dense()
        assert gradient.max().item() == passes


@pytest.mark.covers("AG-53")
def test_threads_have_contexts_of_their_own(agents: World) -> None:
    """Everybody but the first rank runs 20 backward passes through it at once."""
    errors: list[BaseException] = []

    def train(number: int) -> None:
        try:
            leaf = torch.full((3, 3), float(number + 1), requires_grad=True)
            with dist_autograd.context() as identity:
                value = sync(0, torch.add, leaf, leaf)
                value = sync(0, torch.mul, value, leaf)
                dist_autograd.backward(identity, [sync(0, torch.add, value, leaf).sum()])
                assert_gradients(identity, [leaf], [4 * leaf.detach() + 1])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(number,)) for number in range(20)] if agents.rank else []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


@pytest.mark.covers("AG-62")
def test_hooks_after_accumulation_run(agents: World, context: int) -> None:
    """Hooks on a leaf's accumulator run in the order of registration, a removed one not, and the gradient stays right."""
    calls: list[int] = []
    leaf = dense()
    node = leaf.expand_as(leaf).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    node.register_hook(lambda *_: calls.append(1))
    removed = node.register_hook(lambda *_: calls.append(3))
    node.register_hook(lambda *_: calls.append(2))
    removed.remove()
    dist_autograd.backward(context, [sync((agents.rank + 1) % agents.size, torch.add, leaf, leaf).sum()])
    assert calls == [1, 2]
    assert_gradients(context, [leaf], [torch.full((3, 3), 2.0)])


class _Give(torch.autograd.Function):
    """Takes two tensors, and hands gradients to them that have no other owner."""

    gradients: Callable[[], tuple[Tensor, Tensor]]

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        return left.detach() + right.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return _Give.gradients()


def _stored(context: int, *leaves: Tensor) -> list[Tensor]:
    dist_autograd.backward(context, [_Give.apply(*leaves).sum()])
    return [dist_autograd.get_gradients(context)[leaf] for leaf in leaves]


def _embedding_gradient(values: Tensor | None = None) -> Tensor:
    values = torch.ones(2, 3) if values is None else values
    return torch.sparse_coo_tensor(torch.tensor([[0, 2]]), values, (3, 3))


def _address(gradient: Tensor) -> int:
    return (gradient._values() if gradient.is_sparse else gradient).data_ptr()


@pytest.mark.world_size(1, 2)
@pytest.mark.parametrize(
    ("make", "expand"),
    [
        pytest.param(
            lambda: torch.ones(3, 3),
            lambda: torch.ones(1).expand(3, 3),
            marks=pytest.mark.covers("AG-59"),
            id="dense",
        ),
        pytest.param(
            _embedding_gradient,
            lambda: _embedding_gradient(torch.ones(1).expand(2, 3)),
            marks=pytest.mark.covers("AG-60"),
            id="sparse",
        ),
    ],
)
def test_gradient_is_taken_over_unless_shared_or_expanded(agents: World, make: Any, expand: Any) -> None:
    """The context keeps the very buffer that backward made; an expanded gradient, or one given to two leaves, is copied."""
    leaves = [dense(seed=1), dense(seed=2)]
    given: list[int] = []

    def one_of_each() -> tuple[Tensor, Tensor]:
        gradients = make(), expand()
        given.extend(map(_address, gradients))
        return gradients

    def shared() -> tuple[Tensor, Tensor]:
        gradient = make()
        return gradient, gradient

    with dist_autograd.context() as identity:
        _Give.gradients = one_of_each
        taken, copied = map(_address, _stored(identity, *leaves))
        assert taken == given[0]
        assert copied != given[1]
        for _ in range(10):
            _stored(identity, *leaves)
        for gradient in _stored(identity, *leaves):
            assert_same(gradient, 12 * make())
    with dist_autograd.context() as identity:
        _Give.gradients = shared
        first, second = map(_address, _stored(identity, *leaves))
        assert first != second, "two tensors must not share one gradient"


@pytest.mark.world_size(1, 2)
@pytest.mark.covers("AG-61")
def test_views_of_a_sparse_gradient_do_not_force_a_copy(agents: World) -> None:
    """A sparse gradient whose indices and values have another owner keeps that same memory."""
    held: list[Tensor] = []

    def gradients() -> tuple[Tensor, Tensor]:
        given = _embedding_gradient()
        held.extend((given._indices(), given._values()))
        return given, _embedding_gradient()

    with dist_autograd.context() as identity:
        _Give.gradients = gradients
        kept, _ = _stored(identity, dense(seed=1), dense(seed=2))
        assert kept._indices().data_ptr() == held[0].data_ptr()
        assert kept._values().data_ptr() == held[1].data_ptr()


@pytest.mark.covers("AG-58")
def test_hook_changes_the_gradient_that_travels(agents: World, context: int) -> None:
    """A hook on the fetched value triples the gradient before it goes to the other rank and comes back to the leaf."""
    leaf = dense()
    rref = rpc.remote(worker((agents.rank + 1) % agents.size), torch.add, args=(leaf, 1))
    value = rref.to_here()
    value.register_hook(lambda gradient: gradient * 3)
    dist_autograd.backward(context, [value.sum()])
    assert_gradients(context, [leaf], [torch.full((3, 3), 3.0)])
    del rref, value
