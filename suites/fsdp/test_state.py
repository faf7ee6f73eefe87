"""State of sharded training: full and sharded dictionaries, checkpoints, other world sizes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing import assert_close

from disttest.testing import World

from .training import adam, batches, loss_of, make_model, mine, whole

pytestmark = pytest.mark.world_size(2, 4)

FULL = StateDictOptions(full_state_dict=True)


def _sharded(world: World, mesh: DeviceMesh | None = None, *, seed: int = 7) -> nn.Module:
    model = make_model(world.device)
    if seed != 7:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0).add_(seed)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _trained(world: World, mesh: DeviceMesh | None = None) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = _sharded(world, mesh)
    optimizer = adam(model.parameters())
    _step(world, model, optimizer, number=0)
    _step(world, model, optimizer, number=1)
    return model, optimizer


def _step(world: World, model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    loss_of(model, mine(world, batches(world, 4)[number])).backward()
    optimizer.step()


def _whole(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: whole(value).cpu() for name, value in values.items()}


def test_full_state_dict_is_that_of_the_plain_model(world: World) -> None:
    """Its names, their order and its values are the plain model's, as ordinary tensors."""
    model = _sharded(world)
    expected = {name: value.detach() for name, value in make_model(world.device).state_dict().items()}
    found = get_model_state_dict(model, options=FULL)
    assert list(found) == list(expected)
    assert not any(isinstance(value, DTensor) for value in found.values())
    assert_close(dict(found), expected)


def test_sharded_state_dict_holds_shards(world: World) -> None:
    """Every entry is a DTensor, and all ranks together hold each element once."""
    model = _sharded(world)
    found = get_model_state_dict(model)
    assert all(isinstance(value, DTensor) for value in found.values())
    held = torch.tensor(sum(value.to_local().numel() for value in found.values()), device=world.device)
    dist.all_reduce(held)
    assert held.item() == sum(value.numel() for value in make_model(world.device).parameters())


@pytest.mark.parametrize("broadcast", [False, True], ids=["on every rank", "from rank 0"])
def test_full_state_dict_is_loaded_into_shards(world: World, broadcast: bool) -> None:
    """A full dictionary, given on every rank or on rank 0 alone, replaces all values of a sharded model."""
    expected = make_model(world.device).state_dict()
    model = _sharded(world, seed=3)
    given = {} if broadcast and not world.is_first else dict(make_model(world.device).state_dict())
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast)
    set_model_state_dict(model, given, options=options)
    assert_close(_whole(model.state_dict()), {name: value.cpu() for name, value in expected.items()})


def test_missing_entry_is_an_error(world: World) -> None:
    """Loading a dictionary without one of the keys raises, and names the key."""
    state = get_model_state_dict(_sharded(world))
    state.pop("head.weight")
    with pytest.raises(RuntimeError, match=r"Missing key.*head\.weight"):
        set_model_state_dict(_sharded(world), state)


def test_training_goes_on_from_its_state(world: World) -> None:
    """Model and optimiser, through full dictionaries: the next step is the same as without the stop."""
    model, optimizer = _trained(world)
    # A copy: the dictionaries share their step counters with the optimiser.
    states = copy.deepcopy(get_state_dict(model, optimizer, options=FULL))
    again = _sharded(world, seed=3)
    again_optimizer = adam(again.parameters())
    set_state_dict(
        again, again_optimizer, model_state_dict=states[0], optim_state_dict=states[1], options=FULL
    )
    for each in ((model, optimizer), (again, again_optimizer)):
        _step(world, *each, number=2)
    assert_close(_whole(again.state_dict()), _whole(model.state_dict()))


@pytest.mark.parametrize("readers", ["all", "half"])
def test_checkpoint_is_read_at_any_world_size(world: World, readers: str) -> None:
    """Written by all ranks, each its own shards; read by all, or by the first half of them."""
    model, optimizer = _trained(world)
    expected = _whole(model.state_dict())
    moments = get_optimizer_state_dict(model, optimizer, options=FULL)["state"]
    path = world.tmp_path / "checkpoint"
    states = get_state_dict(model, optimizer)
    dcp.save({"model": states[0], "optimizer": states[1]}, checkpoint_id=path)
    size = world.size if readers == "all" else world.size // 2
    mesh = init_device_mesh(world.device_type, (world.size // size, size), mesh_dim_names=("copy", "shard"))
    fewer = mesh["shard"]
    other = _sharded(world, fewer, seed=3)
    other_optimizer = adam(other.parameters())
    empty = get_state_dict(other, other_optimizer)
    read = {"model": empty[0], "optimizer": empty[1]}
    dcp.load(read, checkpoint_id=path, process_group=fewer.get_group())
    set_state_dict(other, other_optimizer, model_state_dict=read["model"], optim_state_dict=read["optimizer"])
    assert_close(_whole(other.state_dict()), expected)
    found = get_optimizer_state_dict(other, other_optimizer, options=FULL)["state"]
    assert_close(dict(found["head.weight"]), dict(moments["head.weight"]))


def test_checkpoint_without_a_shard_is_an_error(world: World) -> None:
    """With the last rank's file deleted, loading raises ``CheckpointException`` and names a file."""
    path = world.tmp_path / "checkpoint"
    dcp.save({"model": get_model_state_dict(_sharded(world))}, checkpoint_id=path)
    dist.barrier()
    if world.is_first:
        (path / f"__{world.size - 1}_0.distcp").unlink()
    dist.barrier()
    with pytest.raises(dcp.api.CheckpointException, match="distcp"):
        dcp.load({"model": get_model_state_dict(_sharded(world, seed=3))}, checkpoint_id=path)
