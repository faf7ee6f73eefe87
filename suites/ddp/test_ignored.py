"""Ignored parameters, and the parameters that DDP then reports."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from disttest.testing.world import World

from ..replicas import assert_different_everywhere, assert_same_everywhere
from .models import DOUBLE, WIDTH, Apply, linear
from .training import assert_gradients_equal, batches, descend, gradients, ignoring, share, twin, wrap

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]


@pytest.mark.covers("CD-263")
def test_data_parallel_params(world: World) -> None:
    """The helper that lists DDP's parameters leaves out ignored ones."""
    model = ignoring(world, nn.Sequential(linear(bias=True), linear()), "0.bias")
    for module in (model, wrap(world, model)):
        listed = list(DistributedDataParallel._get_data_parallel_params(module))
        assert [id(p) for p in listed] == [id(model[0].weight), id(model[1].weight)]


@pytest.mark.covers("CD-264")
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("search", [False, True], ids=["all-used", "search"])
def test_ignored_layer_stays_local(world: World, search: bool, static: bool) -> None:
    """An ignored layer, shaped differently on each rank, gets its rank's own gradient; the other layer gets the mean."""
    width = 2 + world.rank
    own = nn.Linear(WIDTH, width, bias=False, dtype=DOUBLE)
    own.register_buffer("mark", torch.full((width,), float(world.rank), dtype=DOUBLE))
    model = nn.ModuleDict({"shared": linear(), "own": own})
    apply = Apply(lambda layers, x: layers["own"](layers["shared"](x)) + layers["own"].mark, model)
    ignoring(world, apply, "layer.own.weight", "layer.own.mark")
    together = wrap(world, apply, find_unused_parameters=search, static_graph=static)
    alone = twin(world, apply)
    for batch in batches(world, 3):
        together(share(world, batch)).square().sum().backward()
        alone(share(world, batch)).square().sum().backward()
        mine, local = gradients(together), gradients(alone)
        torch.testing.assert_close(mine["layer.own.weight"], local["layer.own.weight"])
        assert_same_everywhere(world, mine["layer.shared.weight"])
        if world.size > 1:
            assert not torch.allclose(mine["layer.shared.weight"], local["layer.shared.weight"])
        together.zero_grad()
        alone.zero_grad()
    assert set(apply.layer["own"].mark.tolist()) == {float(world.rank)}


@pytest.mark.covers("CD-264")
def test_ignored_parameter_is_not_broadcast(world: World) -> None:
    """Construction leaves an ignored parameter as each rank had it."""
    model = nn.Sequential(linear(), linear())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += world.rank
    together = wrap(world, ignoring(world, model, "1.weight"))
    assert_same_everywhere(world, together.module[0].weight)
    assert_different_everywhere(world, together.module[1].weight)


@pytest.fixture
def info_level(monkeypatch: pytest.MonkeyPatch):
    """Debug level INFO, at which DDP keeps names."""
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "INFO")
    dist.set_debug_level_from_env()
    yield
    monkeypatch.undo()
    dist.set_debug_level_from_env()


@pytest.mark.covers("CD-268")
def test_index_to_name(world: World, info_level: None) -> None:
    """The map from index to name leaves out ignored parameters; a list of the wrong length is an error."""
    together = wrap(world, ignoring(world, nn.Sequential(linear(bias=True), linear()), "0.bias"))
    expected, _ = together._build_params_for_reducer()
    assert together._build_debug_param_to_name_mapping(expected) == {0: "0.weight", 1: "1.weight"}
    with pytest.raises(ValueError, match="Expected param to name mapping"):
        together._build_debug_param_to_name_mapping([*expected, nn.Parameter(torch.ones(1))])
    with pytest.raises(ValueError, match="Param with name"):
        together._build_debug_param_to_name_mapping(expected[:1])


@pytest.mark.covers("CD-269")
def test_index_to_name_without_frozen(world: World, info_level: None) -> None:
    """The map leaves out parameters that require no gradient."""
    model = nn.Sequential(linear(bias=True))
    model[0].bias.requires_grad_(False)
    together = wrap(world, model)
    expected, _ = together._build_params_for_reducer()
    assert together._build_debug_param_to_name_mapping(expected) == {0: "0.weight"}


@pytest.mark.covers("CD-264")
def test_ignored_parameter_may_stay_unused(world: World) -> None:
    """An ignored parameter that takes no part is no unfinished reduction."""
    model = Apply(lambda layers, x: layers[0](x), nn.ModuleList([linear(), linear()]))
    together = wrap(world, ignoring(world, model, "layer.1.weight"))
    alone = twin(world, model.layer[0])
    for batch in batches(world, 3):
        together(share(world, batch)).mean().backward()
        alone(batch).mean().backward()
        assert_gradients_equal(together.module.layer[0], alone)
        descend(together, alone)
