"""Gradient accumulation: ``no_sync`` keeps gradients local, the next synchronised backward averages their sum."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn

from disttest.testing.world import World

from ..ranks import exchange
from ..replicas import assert_same_everywhere
from .hooks import chained, divide_first
from .models import DOUBLE, TwoHeads, linear
from .training import (
    assert_gradients_equal,
    assert_synchronised,
    batches,
    descend,
    gradients,
    share,
    twin,
    wrap,
)

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]


@pytest.mark.covers("CD-202", "CD-203", "CD-204", "CD-205")
@pytest.mark.parametrize("hook", [None, divide_first, chained], ids=["plain", "hook", "then-hook"])
@pytest.mark.parametrize("view", [False, True], ids=["copy", "view"])
def test_no_sync(world: World, view: bool, hook: object) -> None:
    """Under ``no_sync`` each rank keeps its own gradients; the next backward averages all that was added up."""
    model = nn.Sequential(*(linear(bias=True) for _ in range(3)))
    alone = twin(world, model)
    together = wrap(world, model, bucket_cap_mb=0.001, gradient_as_bucket_view=view)
    if hook is not None:
        together.register_comm_hook(None, hook)
    for first, second in zip(*[iter(batches(world, 4))] * 2, strict=True):
        own = twin(world, alone)
        with together.no_sync():
            together(share(world, first)).square().mean().backward()
        own(share(world, first)).square().mean().backward()
        assert_gradients_equal(together, own)
        together(share(world, second)).square().mean().backward()
        for batch in (first, second):
            alone(batch).square().mean().backward()
        assert_gradients_equal(together, alone)
        descend(together, alone)


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-202")
def test_no_sync_does_not_communicate(world: World) -> None:
    """One rank alone can run forward and backward under ``no_sync``; the others take no part."""
    together = wrap(world, linear())
    if world.is_first:
        with together.no_sync():
            together(
                torch.ones(1, together.module.in_features, dtype=DOUBLE, device=world.device)
            ).sum().backward()
    flat = exchange(world, None if together.module.weight.grad is None else together.module.weight.grad.sum())
    assert flat[0] is not None
    assert flat[1:] == [None] * (world.size - 1)


@pytest.mark.covers("CD-202")
def test_no_sync_without_gradients(world: World) -> None:
    """``no_sync`` around a forward in ``no_grad`` does nothing, and the next step synchronises as ever."""
    together = wrap(world, linear())
    batch = batches(world, 1)[0]
    with torch.no_grad(), together.no_sync():
        together(share(world, batch))
    assert set(gradients(together).values()) == {None}
    alone = twin(world, together.module)
    alone(batch).mean().backward()
    together(share(world, batch)).mean().backward()
    assert_gradients_equal(together, alone)


@pytest.mark.covers("CD-188")
@pytest.mark.parametrize("view", [False, True], ids=["copy", "view"])
def test_ranks_use_different_layers_while_accumulating(world: World, view: bool) -> None:
    """Each rank uses another layer in each pass; after the synchronised one all ranks hold the mean of the sums."""
    model = TwoHeads()
    alone = [twin(world, model) for _ in range(world.size)]
    together = wrap(world, model, find_unused_parameters=True, gradient_as_bucket_view=view)
    data = batches(world, 2)
    for step, batch in enumerate(data):
        with together.no_sync() if step == 0 else contextlib.nullcontext():
            together(share(world, batch))[(world.rank + step) % 2].sum().backward()
        for rank, copy in enumerate(alone):
            copy(batch.tensor_split(world.size)[rank])[(rank + step) % 2].sum().backward()
    for name, gradient in gradients(together).items():
        own = [gradients(copy)[name] for copy in alone]
        torch.testing.assert_close(gradient, sum(own) / world.size)
    assert_synchronised(world, together)


@pytest.mark.covers("CD-206")
def test_future_of_an_all_reduce(world: World) -> None:
    """``get_future`` chains two callbacks on the result: twice the size, times three, plus one."""
    tensor = torch.full((4,), 2.0, device=world.device)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    chained = future.then(lambda done: done.value()[0] * 3).then(lambda done: done.value() + 1)
    assert chained.wait().tolist() == [2.0 * world.size * 3 + 1] * 4


@pytest.mark.covers("CD-202")
def test_accumulating_without_zeroing(world: World) -> None:
    """Without ``zero_grad`` synchronised steps add up, on every rank alike."""
    together = wrap(world, linear())
    alone = twin(world, together.module)
    for batch in batches(world, 3):
        together(share(world, batch)).mean().backward()
        alone(batch).mean().backward()
    torch.testing.assert_close(together.module.weight.grad, alone.weight.grad)
    assert_same_everywhere(world, gradients(together))
