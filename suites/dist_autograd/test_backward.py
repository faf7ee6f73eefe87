"""Gradients across ranks equal those of one process; the body of a test is the same for every way to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed.autograd as dist_autograd
from torch import Tensor

from disttest.testing import World

from ..ranks import meet
from ..rpc.scripted import script, weighted_sum
from . import remote
from .calls import asynchronous, by_reference, every_remote_way, local, sync
from .tensors import Maker, assert_gradients, assert_same, both, dense, local_gradients, sparse, total

pytestmark = [pytest.mark.world_size(2, 4), pytest.mark.device("cpu")]

Run = Callable[..., Tensor]
"""``run(function, *args)``: the function's result, computed where the test says."""


class Graph(NamedTuple):
    """A computation with remote parts."""

    tensors: Callable[[Maker], Sequence[Tensor]]
    loss: Callable[..., Any]
    """``loss(run, *tensors)``: one root or several."""
    to_self: bool = False
    sparse: bool = True
    """Whether it works on sparse tensors too."""


def _two(make: Maker) -> Sequence[Tensor]:
    return make(seed=1), make(seed=2)


def _mixed_dtypes(make: Maker) -> Sequence[Tensor]:
    return make(seed=1, dtype=torch.float32), make(seed=2, dtype=torch.float64)


def _random(*shapes: tuple[int, ...]) -> Callable[[Maker], Sequence[Tensor]]:
    def tensors(make: Maker) -> Sequence[Tensor]:
        generator = torch.Generator().manual_seed(5)
        return [torch.rand(shape, generator=generator).requires_grad_() for shape in shapes]

    return tensors


def _round_trips(run: Run, t1: Tensor, t2: Tensor, t3: Tensor, t4: Tensor, t5: Tensor) -> Tensor:
    value = run(torch.mul, t3, run(torch.add, t1, t2))
    value = run(torch.stack, [value, t4])
    value = run(torch.stack, [value, torch.stack([t5, t5])])
    return total(run(torch.mul, value, value))


def _five(make: Maker) -> Sequence[Tensor]:
    return [make(seed=number, grad=number not in (2, 4)) for number in (1, 2, 3, 4, 5)]


def _dimensions(run: Run, t1: Tensor, t2: Tensor, t3: Tensor, t4: Tensor) -> Tensor:
    return run(torch.linalg.multi_dot, [run(torch.matmul, t1, t2), t3, t4]).sum()


def _unused(run: Run, t1: Tensor, t2: Tensor, t3: Tensor) -> Tensor:
    stacked = run(torch.stack, [t1, t2, t3])
    return run(torch.matmul, stacked[0], stacked[2]).sum()


def _outputs(run: Run, tensor: Tensor) -> Tensor:
    parts = run(remote_split, tensor)
    return run(torch.linalg.multi_dot, [parts[0], parts[2], parts[4]]).sum()


def remote_split(tensor: Tensor) -> Sequence[Tensor]:
    """Five (2, 2) parts: several tensors in one answer."""
    return torch.split(tensor, 2)


def _roots(run: Run, t1: Tensor, t2: Tensor) -> Sequence[Tensor]:
    return [run(function, t1, t2).sum() for function in (torch.add, torch.mul, torch.div)] + [
        run(torch.cos, t1).sum()
    ]


def _hooked(run: Run, t1: Tensor, t2: Tensor) -> Tensor:
    value = run(torch.add, t1, t2)
    value.register_hook(lambda gradient: gradient * 2)
    return value.sum()


def _of_two(function: Any) -> Callable[[Run, Tensor, Tensor], Tensor]:
    return lambda run, left, right: total(run(function, left, right))


def _script(run: Run, left: Tensor, right: Tensor) -> Tensor:
    return total(run(script(weighted_sum), left, right))


def _chain(run: Run, *tensors: Tensor) -> Tensor:
    return run(remote.linear_chain, *tensors).sum()


GRAPHS = {
    "one operator": Graph(_two, _of_two(torch.add)),  # covers: AG-25 AG-80
    "own rank": Graph(_two, _of_two(torch.add), to_self=True),  # covers: AG-26 AG-81
    "round trips": Graph(_five, _round_trips),  # covers: AG-32 AG-86
    "dimensions": Graph(_random((4, 6), (6, 5), (5, 7), (7, 9)), _dimensions, sparse=False),  # covers: AG-33
    "unused": Graph(_random((3, 3), (3, 3), (3, 3)), _unused, sparse=False),  # covers: AG-34
    "several outputs": Graph(_random((10, 2)), _outputs, sparse=False),  # covers: AG-35
    "several roots": Graph(_two, _roots, sparse=False),  # covers: AG-42
    "dtypes": Graph(_mixed_dtypes, _of_two(torch.add)),  # covers: AG-43 AG-87
    "python": Graph(_two, _of_two(remote.add)),  # covers: AG-44 AG-88
    "scripted": Graph(_two, _script),  # covers: AG-45 AG-89
    "chain of operators": Graph(_random((6, 6), (6, 6), (6,)), _chain, sparse=False),  # covers: AG-46
    "hook": Graph(_two, _hooked, sparse=False),  # covers: AG-58
}


def _rows() -> Sequence[Any]:
    return [
        pytest.param(graph, make, id=f"{name}-{make.__name__}")
        for name, graph in GRAPHS.items()
        for make in ((dense, sparse) if graph.sparse else (dense,))
    ]


@pytest.mark.parametrize(("graph", "make"), _rows())
@every_remote_way
def test_gradients_equal_local_ones(
    agents: World, context: int, graph: Graph, make: Maker, call: Any
) -> None:
    """Each call of the graph goes to the next other rank in turn."""
    there = agents.rank

    def run(function: Any, *args: Any) -> Any:
        nonlocal there
        there = agents.rank if graph.to_self else _next_other(agents, there)
        return call(there, function, *args)

    leaves = graph.tensors(make)
    if graph.loss is _script:
        script(weighted_sum)
        meet(agents)
    expected = local_gradients(graph.loss(lambda function, *args: local(0, function, *args), *leaves), leaves)
    found = graph.loss(run, *leaves)
    dist_autograd.backward(context, [found] if isinstance(found, Tensor) else found)
    assert_gradients(context, leaves, expected)


def _next_other(world: World, rank: int) -> int:
    following = (rank + 1) % world.size
    return following if following != world.rank else (following + 1) % world.size


@both  # covers: AG-24 AG-79
def test_gradients_go_to_the_context_only(agents: World, context: int, make: Maker) -> None:
    """A distributed backward leaves ``.grad`` unset, or as a local backward has set it."""
    left, right = make(seed=1), make(seed=2)
    loss = total(sync((agents.rank + 1) % agents.size, torch.add, left, right))
    dist_autograd.backward(context, [loss], retain_graph=True)
    assert left.grad is None
    assert right.grad is None
    total(torch.add(left, right)).backward()
    before = left.grad.clone()  # type: ignore[attr-defined]
    dist_autograd.backward(context, [loss])
    assert_same(left.grad, before)


@both  # covers: AG-51 AG-92
@pytest.mark.parametrize("call", [sync, by_reference])
def test_only_tensors_that_want_a_gradient_get_one(
    agents: World, context: int, make: Maker, call: Any
) -> None:
    """``requires_grad`` of each argument travels, and the context has a gradient only for the one that wants it."""
    left, right = make(seed=1), make(seed=2, grad=False)
    result = call((agents.rank + 1) % agents.size, remote.by_flag, left, right)
    assert_same(result.detach(), (left * right).detach())
    dist_autograd.backward(context, [total(result)])
    assert_gradients(context, [left, right], [local_gradients(total(left * right), [left])[0], None])


@pytest.mark.world_size(3, 4)
@both  # covers: AG-49 AG-91
def test_graph_spread_over_three_ranks(agents: World, context: int, make: Maker) -> None:
    """A call whose function calls a third rank gives the gradients of the same computation in one process."""
    first, second = ((agents.rank + step) % agents.size for step in (1, 2))
    leaves = make(seed=1), make(seed=2)
    expected = local_gradients(total(remote.nested_locally(*leaves)), leaves)
    result = sync(first, remote.nested, *leaves, second)
    dist_autograd.backward(context, [total(result)])
    assert_gradients(context, leaves, expected)


@pytest.mark.covers("AG-40")
def test_backward_without_any_call(agents: World, context: int) -> None:
    """A loss made without any remote call gets its gradients into the context too."""
    leaves = [dense(seed=1), dense(seed=2)]
    dist_autograd.backward(context, [torch.add(*leaves).sum()])
    assert_gradients(context, leaves, [torch.ones(3, 3)] * 2)


@pytest.mark.world_size(4)
def test_gradients_of_all_callers_stay_apart(agents: World, context: int) -> None:
    """Every rank runs a backward through the same rank at the same time."""
    leaf = torch.full((3, 3), float(agents.rank + 1), requires_grad=True)
    result = asynchronous(0, torch.mul, leaf, leaf)
    meet(agents)
    dist_autograd.backward(context, [result.sum()])
    assert_gradients(context, [leaf], [torch.full((3, 3), 2.0 * (agents.rank + 1))])
