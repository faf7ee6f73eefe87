"""Tensors on GPUs, moved from device to device by the maps of the agents."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.rpc as rpc
from torch.testing import assert_close

from disttest.testing import World

from ..ranks import meet
from . import remote
from .agents import agent, worker

pytestmark = [pytest.mark.world_size(2, 4), pytest.mark.backend("gloo")]


def _ring(world: World) -> rpc.TensorPipeRpcBackendOptions:
    options = rpc.TensorPipeRpcBackendOptions(init_method="env://")
    there = (world.rank + 1) % world.size
    options.set_device_map(
        worker(there), {world.device: torch.device("cuda", there % torch.cuda.device_count())}
    )
    return options


@pytest.mark.fresh_world
@pytest.mark.needs_gpus(2)
def test_tensor_goes_to_the_mapped_device_and_back(world: World) -> None:
    """The callee sees the tensor on the mapped GPU, and the answer is on the caller's own."""
    with agent(world, options=_ring(world)):
        mine = torch.full((1000,), float(world.rank), device=world.device)
        there = (world.rank + 1) % world.size
        place, answer = rpc.rpc_sync(worker(there), _doubled, args=(mine,))
        assert place == there % torch.cuda.device_count()
        assert answer.device == world.device
        assert_close(answer, 2 * mine)
        rref = rpc.remote(worker(there), _doubled, args=(mine,))
        assert_close(rref.to_here()[1], 2 * mine)
        meet(world)


def _doubled(tensor: torch.Tensor) -> tuple[int, torch.Tensor]:
    return tensor.device.index, tensor * 2


@pytest.mark.needs_gpus(1)
def test_gpu_tensor_without_a_map_is_refused(world: World) -> None:
    """Sending it raises an error that asks for a device map."""
    with agent(world):
        with pytest.raises(RuntimeError, match="device map"):
            rpc.rpc_sync(
                worker((world.rank + 1) % world.size), remote.same, args=(torch.ones(1, device=world.device),)
            )
        meet(world)


@pytest.mark.needs_gpus(1)
@pytest.mark.parametrize("maps", [{0: 0, 1: 0}], ids=["two to one"])
def test_maps_must_be_one_to_one(world: World, maps: dict[int, int]) -> None:
    """Two devices mapped to one raise ``ValueError`` when the options are made."""
    with pytest.raises(ValueError, match="only supports 1-to-1 mapping"):
        rpc.TensorPipeRpcBackendOptions(device_maps={"worker1": maps})
