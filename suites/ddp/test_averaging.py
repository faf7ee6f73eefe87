"""Model averaging instead of gradient averaging: periodic, hierarchical, and the optimiser built on them."""

from __future__ import annotations

import warnings
from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager, utils
from torch.distributed.optim import PostLocalSGDOptimizer

from disttest.testing.world import World

from ..ranks import meet, subgroup
from ..replicas import assert_same_everywhere
from .models import linear
from .training import assert_parameters_equal, batches, share, twin, wrap

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]


def _model_of(world: World) -> nn.Module:
    """A layer that holds this rank's number everywhere, with a gradient: averagers skip parameters without one."""
    model = linear(1, 5).to(world.device)
    _set(world, model)
    return model


def _set(world: World, model: nn.Module) -> None:
    model.weight.data.fill_(world.rank)
    model.weight.grad = torch.ones_like(model.weight)


def _value(model: nn.Module) -> float:
    values = set(model.weight.flatten().tolist())
    assert len(values) == 1
    return values.pop()


def _mean(ranks: range | list[int]) -> float:
    return sum(ranks) / len(ranks)


@pytest.mark.covers("CD-028")
def test_average_parameters(world: World) -> None:
    """Averaging gives every parameter the mean over the world, or over a group for its members alone."""
    model = _model_of(world)
    utils.average_parameters(model.parameters(), world.group)
    assert _value(model) == pytest.approx(_mean(range(world.size)))
    if world.size < 2:
        return
    _set(world, model)
    with subgroup([0, 1]) as group:
        if world.rank < 2:
            utils.average_parameters(model.parameters(), group)
    assert _value(model) == pytest.approx(0.5 if world.rank < 2 else world.rank)


@pytest.mark.covers("CD-028")
def test_parameters_without_gradient_are_left(world: World) -> None:
    """A parameter that has no gradient is not averaged."""
    trained, idle = _model_of(world), _model_of(world)
    idle.weight.grad = None
    averager = averagers.PeriodicModelAverager(period=1, warmup_steps=0)
    averager.average_parameters(nn.ModuleList([trained, idle]).parameters())
    assert _value(trained) == pytest.approx(_mean(range(world.size)))
    assert _value(idle) == world.rank


@pytest.mark.covers("CD-029", "CD-030")
@pytest.mark.parametrize("warmup", [12, 13, 14, 15])
@pytest.mark.parametrize("groups", [False, True], ids=["parameters", "param-groups"])
def test_periodic(world: World, groups: bool, warmup: int) -> None:
    """Parameters become the mean at every fourth step from the end of the warm-up, and at no other."""
    averager = averagers.PeriodicModelAverager(period=4, warmup_steps=warmup)
    model = _model_of(world)
    target = torch.optim.SGD(model.parameters(), lr=0.1).param_groups if groups else model.parameters
    for step in range(20):
        _set(world, model)
        averager.average_parameters(target if groups else target())
        averages = step >= warmup and (step - warmup) % 4 == 0
        assert _value(model) == pytest.approx(_mean(range(world.size)) if averages else world.rank), step
    assert averager.step == 20


@pytest.mark.covers("CD-031")
def test_hierarchy_of_one_level(world: World) -> None:
    """A hierarchy with the world alone equals the periodic averager."""
    periods = OrderedDict([(4, world.size)])
    hierarchical = hierarchical_model_averager.HierarchicalModelAverager(periods, warmup_steps=12)
    periodic = averagers.PeriodicModelAverager(period=4, warmup_steps=12)
    for step in range(20):
        pair = _model_of(world), _model_of(world)
        for averager, model in zip((hierarchical, periodic), pair, strict=True):
            averager.average_parameters(model.parameters())
        assert _value(pair[0]) == pytest.approx(_value(pair[1])), step
        due = step >= 12 and step % 4 == 0
        assert _value(pair[0]) == pytest.approx(_mean(range(world.size)) if due else world.rank)


@pytest.mark.world_size(4, 8)
@pytest.mark.covers("CD-032")
def test_hierarchy_of_three_levels(world: World) -> None:
    """Pairs every second step, fours every fourth, the world every eighth; the widest one due wins."""
    periods = OrderedDict([(2, 2), (4, 4), (8, world.size)])
    warmup = 10
    averager = hierarchical_model_averager.HierarchicalModelAverager(periods, warmup_steps=warmup)
    for period, group in averager.period_process_group_dict.items():
        size = periods[period]
        start = world.rank // size * size
        assert dist.get_process_group_ranks(group) == list(range(start, start + size))
    for step in range(25):
        model = _model_of(world)
        averager.average_parameters(model.parameters())
        since = step - warmup
        due = [size for period, size in periods.items() if since >= 0 and step % period == 0]
        size = max(due, default=1)
        start = world.rank // size * size
        assert _value(model) == pytest.approx(_mean(range(start, start + size))), step


def _make_averager(world: World, kind: str) -> averagers.ModelAverager:
    if kind == "periodic":
        return averagers.PeriodicModelAverager(period=4, warmup_steps=4)
    levels = OrderedDict([(2, 2), (4, world.size)])
    return hierarchical_model_averager.HierarchicalModelAverager(levels, warmup_steps=4)


@pytest.mark.covers("CD-218", "CD-219", "CD-220", "CD-221")
@pytest.mark.parametrize("view", [False, True], ids=["copy", "view"])
@pytest.mark.parametrize("kind", ["periodic", "hierarchical"])
def test_post_local_sgd_optimizer(world: World, kind: str, view: bool) -> None:
    """``PostLocalSGDOptimizer`` does what plain steps and averaging by hand do."""
    if kind == "hierarchical" and (world.size < 4 or world.size % 2):
        pytest.skip("pairs inside a larger world need 4, 6, 8 … ranks")
    model = nn.Sequential(linear(), nn.ReLU(), linear())
    by_hand, by_optimizer = (wrap(world, twin(world, model), gradient_as_bucket_view=view) for _ in range(2))
    own, _ = dist.new_subgroups_by_enumeration([[rank] for rank in range(world.size)])
    for each in (by_hand, by_optimizer):
        each.register_comm_hook(PostLocalSGDState(None, own, start_localSGD_iter=4), post_localSGD_hook)
    manual = _make_averager(world, kind)
    plain = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    wrapped = PostLocalSGDOptimizer(
        optim=torch.optim.SGD(by_optimizer.parameters(), lr=0.1), averager=_make_averager(world, kind)
    )
    for batch in batches(world, 13):
        for each, optimizer in ((by_hand, plain), (by_optimizer, wrapped)):
            optimizer.zero_grad()
            each(share(world, batch)).square().mean().backward()
            optimizer.step()
        manual.average_parameters(by_hand.parameters())
        assert_parameters_equal(by_optimizer, by_hand)
        assert wrapped.averager.step == manual.step
    if kind == "periodic":  # the last of 13 steps, number 12, was one that averages
        assert_same_everywhere(world, dict(by_optimizer.module.named_parameters()))


@pytest.mark.covers("CD-222")
def test_optimizer_state_carries_the_step(world: World, world_tmp_path) -> None:
    """A saved optimiser goes on at its averager's step; a state without one starts at 0, with a warning."""

    def make() -> PostLocalSGDOptimizer:
        inner = torch.optim.SGD(_model_of(world).parameters(), lr=0.1)
        return PostLocalSGDOptimizer(
            optim=inner, averager=averagers.PeriodicModelAverager(period=4, warmup_steps=4)
        )

    first = make()
    for _ in range(6):
        first.step()
    path = world_tmp_path / "optimizer.pt"
    if world.is_first:
        torch.save({"optimizer": first.state_dict()}, path)
    meet(world)
    second = make()
    saved = torch.load(path, weights_only=False)["optimizer"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second.load_state_dict(dict(saved))
    assert second.averager.step == first.averager.step == 6
    del saved["step"]
    with pytest.warns(UserWarning, match="does not contain a step counter"):
        second.load_state_dict(saved)
    assert second.averager.step == 0


@pytest.mark.covers("CD-029")
@pytest.mark.parametrize(
    ("period", "warmup", "text"), [(0, 0, "period"), (-1, 0, "period"), (4, -1, "warmup_steps")]
)
def test_averager_arguments(world: World, period: int, warmup: int, text: str) -> None:
    """A period below one and a negative warm-up are errors."""
    with pytest.raises(ValueError, match=text):
        averagers.PeriodicModelAverager(period=period, warmup_steps=warmup)
