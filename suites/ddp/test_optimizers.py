"""Optimisers that step inside backward or inside a communication hook, the sampler, and a change of group."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.utils.data import DistributedSampler

from disttest.testing.world import World

from ..ranks import exchange, subgroup
from ..replicas import assert_different_everywhere, assert_same_everywhere
from .models import DOUBLE, linear
from .training import (
    assert_parameters_equal,
    batches,
    ignoring,
    parameters,
    require_option,
    share,
    twin,
    wrap,
)

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]

_OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.03, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 0.03}),
    "adamw": (torch.optim.AdamW, {"lr": 0.03}),
}


def _stack() -> nn.Module:
    return nn.Sequential(linear(), linear(), linear())


@pytest.mark.covers("CD-265", "CD-266")
@pytest.mark.needs("accelerator_events")
@pytest.mark.parametrize("view", [True, False], ids=["view", "copy"])
@pytest.mark.parametrize("before", [True, False], ids=["before-wrapping", "after"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_optimizer_in_backward(world: World, name: str, before: bool, view: bool) -> None:
    """Stepping in backward ends with the parameters of stepping afterwards, and leaves no gradient."""
    kind, options = _OPTIMIZERS[name]
    model = _stack()
    plain = wrap(world, twin(world, model), gradient_as_bucket_view=view)
    optimizer = kind(plain.parameters(), **options)
    inside = twin(world, model)
    if before:
        _apply_optimizer_in_backward(kind, inside.parameters(), options)
    inside = wrap(world, inside, gradient_as_bucket_view=view)
    if not before:
        _apply_optimizer_in_backward(kind, inside.parameters(), options)
    for batch in batches(world, 8):
        optimizer.zero_grad()
        plain(share(world, batch)).square().mean().backward()
        optimizer.step()
        inside(share(world, batch)).square().mean().backward()
        assert_parameters_equal(inside, plain)
        assert all(parameter.grad is None for parameter in inside.parameters())


@pytest.mark.covers("CD-267")
@pytest.mark.needs("accelerator_events")
def test_optimizer_in_backward_of_an_ignored_parameter(world: World) -> None:
    """An ignored parameter is stepped by its rank's own gradient, the others by the mean."""
    model = ignoring(world, _stack(), "1.weight")
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.03})
    together = wrap(world, model)
    for batch in batches(world, 3):
        together(share(world, batch)).square().mean().backward()
    values = parameters(together)
    assert_different_everywhere(world, values.pop("1.weight"))
    assert_same_everywhere(world, values)


@pytest.mark.covers("CD-411")
@pytest.mark.parametrize("subset", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("name", list(_OPTIMIZERS))
def test_optimizer_fused_into_the_hook(world: World, name: str, subset: bool) -> None:
    """An optimiser inside the communication hook equals DDP and ``step()``; parameters left out stay as they were."""
    kind, options = _OPTIMIZERS[name]
    if name == "sgd":
        options = {**options, "momentum": 0.9}
    model = _stack()
    plain, fused = wrap(world, twin(world, model)), wrap(world, twin(world, model))
    chosen = [0, 2] if subset else [0, 1, 2]
    optimizer = kind([plain.module[i].weight for i in chosen], **options)
    fused_options = {"optim_params": [fused.module[i].weight for i in chosen]} if subset else {}
    fused._register_fused_optim(kind, **fused_options, **options)
    untouched = model[1].weight.detach().clone().to(world.device)
    for batch in batches(world, 6):
        for each in (plain, fused):
            each.zero_grad()
            each(share(world, batch)).square().mean().backward()
        optimizer.step()
        torch.testing.assert_close(parameters(fused), parameters(plain), rtol=1e-6, atol=1e-8)
    assert torch.equal(fused.module[1].weight, untouched) == subset


@pytest.mark.covers("CD-412")
@pytest.mark.world_size(min=2)
@pytest.mark.parametrize("search", [False, True], ids=["all-used", "search"])
@pytest.mark.parametrize("after_failure", [False, True], ids=["healthy", "after-failure"])
def test_change_of_group(world: World, after_failure: bool, search: bool) -> None:
    """``_update_process_group`` makes gradients average over a smaller group, and over the world again."""
    together = wrap(world, linear(1, 1), find_unused_parameters=search)
    if after_failure:
        handle = together.module.weight.register_hook(_explode)
        with together.no_sync(), pytest.raises(RuntimeError, match="on purpose"):
            together(torch.ones(1, 1, dtype=DOUBLE, device=world.device)).sum().backward()
        handle.remove()

    def step(group: object, members: list[int]) -> None:
        together._update_process_group(group)
        for _ in range(2):
            together.zero_grad()
            together(
                torch.full((1, 1), float(world.rank), dtype=DOUBLE, device=world.device)
            ).sum().backward()
            assert together.module.weight.grad.item() == pytest.approx(sum(members) / len(members))

    some = [0, 1] if world.size > 2 else [1]
    with subgroup(some) as group:
        if world.rank in some:
            step(group, some)
        step(world.group, list(range(world.size)))


def _explode(gradient: torch.Tensor) -> None:
    raise RuntimeError("on purpose")


@pytest.mark.covers("CD-282")
@pytest.mark.parametrize("drop_last", [False, True], ids=["pad", "drop"])
@pytest.mark.parametrize("extra", [0, 1, 7])
def test_sampler(world: World, extra: int, drop_last: bool) -> None:
    """Each rank gets as many indices as any other; padded or cut, together they cover the data as they should."""
    count = world.size * 10 + extra
    sampler = DistributedSampler(range(count), num_replicas=world.size, rank=world.rank, drop_last=drop_last)
    each = count // world.size if drop_last else math.ceil(count / world.size)
    if drop_last and count % world.size:
        each = math.ceil((count - world.size) / world.size)
    mine = list(sampler)
    assert (len(mine), len(sampler), sampler.num_samples) == (each,) * 3
    assert sampler.total_size == each * world.size
    everybody = [index for indices in exchange(world, mine) for index in indices]
    assert set(everybody) <= set(range(count))
    assert len(set(everybody)) == min(count, each * world.size)
    sampler.set_epoch(1)
    assert list(sampler) != mine


@pytest.mark.covers("CD-282")
@pytest.mark.world_size(min=4)
def test_sampler_of_a_tiny_dataset(world: World) -> None:
    """Fewer items than ranks: items are repeated until every rank has one."""
    sampler = DistributedSampler(range(world.size // 2 - 1), num_replicas=world.size, rank=world.rank)
    assert exchange(world, len(list(sampler))) == [1] * world.size


@pytest.mark.covers("CD-185")
def test_batched_gradient_copy(world: World) -> None:
    """``batched_grad_copy`` copies gradients in one go, with the same result."""
    require_option("batched_grad_copy")
    model = _stack()
    one, other = wrap(world, twin(world, model)), wrap(world, twin(world, model), batched_grad_copy=True)
    for batch in batches(world, 2):
        for each in (one, other):
            each(share(world, batch)).square().mean().backward()
        torch.testing.assert_close(one.module[0].weight.grad, other.module[0].weight.grad)
        assert_same_everywhere(world, other.module[0].weight.grad)
