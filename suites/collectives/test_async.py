"""Handles, futures, profiler events, debug levels, and the functional form of the collectives."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from disttest.testing.world import World

from ..ranks import exchange
from .data import ReduceOp, all_of, assert_completed, contributions, exactly, mine, reduced

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]


@pytest.mark.covers("CD-083")
@pytest.mark.parametrize(
    "kind", ["all_reduce", "broadcast", "all_gather", "gather", "scatter", "reduce", "all_to_all_single"]
)
def test_handles(world: World, kind: str) -> None:
    """Every collective gives a handle; after ``wait`` its result is there, and it says that it is completed."""
    everybody, last = all_of(world), world.size - 1
    data = contributions(everybody, world.size)
    tensor, output = mine(everybody, data), torch.zeros(world.size, device=world.device)
    slots = [torch.zeros(world.size, device=world.device) for _ in data]
    at_last = world.rank == last
    start = {
        "all_reduce": lambda: dist.all_reduce(tensor, async_op=True),
        "broadcast": lambda: dist.broadcast(tensor, src=last, async_op=True),
        "all_gather": lambda: dist.all_gather(slots, tensor, async_op=True),
        "gather": lambda: dist.gather(tensor, slots if at_last else None, dst=last, async_op=True),
        "scatter": lambda: dist.scatter(output, list(data) if at_last else None, src=last, async_op=True),
        "reduce": lambda: dist.reduce(tensor, dst=last, async_op=True),
        "all_to_all_single": lambda: dist.all_to_all_single(output, tensor, async_op=True),
    }
    work = start[kind]()
    work.wait()
    assert_completed(world, work)
    expected = {
        "all_reduce": (tensor, reduced(data, ReduceOp.SUM)),
        "broadcast": (tensor, data[last]),
        "all_gather": (slots, list(data)),
        "gather": (slots, list(data) if at_last else slots),
        "scatter": (output, data[world.rank]),
        "reduce": (tensor, reduced(data, ReduceOp.SUM) if at_last else tensor),
        "all_to_all_single": (output, data[:, world.rank].contiguous()),
    }
    exactly(*expected[kind])


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-083")
def test_handle_is_not_done_early(world: World) -> None:
    """While a rank has not come, the others' handles are not completed."""
    tensor = torch.full((4,), float(world.rank + 1), device=world.device)
    last = world.size - 1
    if world.rank == last:
        exchange(world, "not yet")
        dist.all_reduce(tensor)
    else:
        work = dist.all_reduce(tensor, async_op=True)
        if world.device.type == "cpu":
            assert not work.is_completed()
        exchange(world, "posted")
        work.wait()
    assert tensor.tolist() == [world.size * (world.size + 1) / 2] * 4


@pytest.mark.covers("CD-083")
def test_many_handles_at_once(world: World) -> None:
    """Twenty reductions under way at once do not mix, in whatever order they are waited for."""
    everybody = all_of(world)
    data = [contributions(everybody, 10) for _ in range(20)]
    tensors = [mine(everybody, each) for each in data]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    exactly(tensors, [reduced(each, ReduceOp.SUM) for each in data])


@pytest.mark.covers("CD-206")
def test_future(world: World) -> None:
    """The future of a handle carries the reduced tensor, and callbacks run on it."""
    everybody = all_of(world)
    data = contributions(everybody, 4)
    future = dist.all_reduce(mine(everybody, data), async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    exactly(doubled.wait(), reduced(data, ReduceOp.SUM) * 2)
    assert future.done()


_BARRIER = {"nccl": "all_reduce_barrier"}
"""What the profiler calls a barrier, where it is not a barrier: over NCCL it is a reduction of one element."""


@pytest.mark.covers("CD-084", "CD-065", "CD-127")
@pytest.mark.parametrize("kind", ["all_reduce", "broadcast", "reduce", "all_gather", "barrier"])
def test_profiler_events(world: World, kind: str) -> None:
    """Each collective is one asynchronous event under the backend's name."""
    tensor = torch.ones(3, 2, device=world.device)
    calls = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "broadcast": lambda: dist.broadcast(tensor, src=0),
        "reduce": lambda: dist.reduce(tensor, dst=0),
        "all_gather": lambda: dist.all_gather([torch.zeros_like(tensor) for _ in range(world.size)], tensor),
        "barrier": dist.barrier,
    }
    with torch.autograd.profiler.profile(record_shapes=True) as profiler:
        calls[kind]()
        calls[kind]()
    name = _BARRIER.get(world.backend, kind) if kind == "barrier" else kind
    found = [event for event in profiler.function_events if event.name == f"{world.backend}:{name}"]
    assert len(found) == 2
    for event in found:
        assert event.is_async
        assert event.cpu_time_total > 0
        if kind != "barrier":
            assert [3, 2] in event.input_shapes or [[3, 2]] in event.input_shapes


@pytest.mark.covers("CD-009")
def test_debug_levels(world: World, debug_level: str) -> None:
    """A group made at each debug level reduces alike; at DETAIL it checks calls across ranks and names the mismatch."""
    group = dist.new_group()
    tensor = torch.ones(2, device=world.device)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [float(world.size)] * 2
    if debug_level == "DETAIL" and world.size > 1:
        with pytest.raises(RuntimeError, match=r"(?i)mismatch|collectives differ|but Rank|is running"):
            dist.all_reduce(torch.ones(2 + (world.rank == 1), device=world.device), group=group)
    exchange(world, None)


@pytest.mark.covers("CD-082")
def test_functional_all_reduce(world: World) -> None:
    """The functional form returns the result and leaves its input alone."""
    everybody = all_of(world)
    data = contributions(everybody, 4)
    tensor = mine(everybody, data)
    result = functional.all_reduce(tensor, "sum", list(range(world.size)))
    exactly(result + 0, reduced(data, ReduceOp.SUM))
    exactly(tensor, data[world.rank])


@pytest.mark.covers("CD-134", "CD-081", "CD-145", "CD-060")
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_functional_others(world: World, kind: str) -> None:
    """Gather, reduce-scatter, all-to-all and broadcast in functional form."""
    everybody, ranks = all_of(world), list(range(world.size))
    data = contributions(everybody, world.size, 2)
    tensor = mine(everybody, data)
    if kind == "all_gather":
        result, expected = functional.all_gather_tensor(tensor, 0, ranks), data.flatten(0, 1)
    elif kind == "reduce_scatter":
        result = functional.reduce_scatter_tensor(tensor, "sum", 0, ranks)
        expected = data.sum(dim=0)[world.rank : world.rank + 1]
    elif kind == "all_to_all":
        ones = [1] * world.size
        result, expected = functional.all_to_all_single(tensor, ones, ones, ranks), data[:, world.rank]
    else:
        result, expected = functional.broadcast(tensor, world.size - 1, ranks), data[-1]
    exactly(result + 0, expected.contiguous())


@pytest.mark.covers("CD-082")
def test_differentiable_all_reduce(world: World) -> None:
    """The differentiable form sums gradients over ranks too."""
    import torch.distributed.nn.functional as differentiable

    x = torch.full((2,), float(world.rank + 1), device=world.device, requires_grad=True)
    (differentiable.all_reduce(x) * (world.rank + 1)).sum().backward()
    total = world.size * (world.size + 1) / 2
    assert x.grad.tolist() == [total] * 2
