"""The same over GPUs and device maps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import nn
from torch.testing import assert_close

from disttest.testing import World

from ..ranks import meet
from ..rpc.agents import agent, worker
from .calls import sync
from .tensors import assert_gradients, local_gradients

pytestmark = [pytest.mark.world_size(4), pytest.mark.backend("gloo")]


def _device_of(rank: int) -> torch.device:
    """The rank's device as each process sees it: each has all GPUs of the world, or one MIG slice."""
    return torch.device("cuda", rank % torch.cuda.device_count())


def _options(world: World) -> Any:
    """Each rank's device is mapped to every other rank's."""
    options = rpc.TensorPipeRpcBackendOptions(init_method="env://")
    for rank in range(world.size):
        if rank != world.rank:
            options.set_device_map(worker(rank), {world.device: _device_of(rank)})
    return options


@pytest.mark.world_size(1)
@pytest.mark.needs_gpus(1)
@pytest.mark.covers("AG-97")
def test_gradients_of_gpu_tensors(agents: World, context: int) -> None:
    """The gradients of a local sum on a GPU are ones, on that GPU, in the context."""
    leaves = [torch.rand(3, 3, device="cuda", requires_grad=True) for _ in range(2)]
    dist_autograd.backward(context, [(leaves[0] + leaves[1]).sum()])
    assert_gradients(context, leaves, [torch.ones(3, 3, device="cuda")] * 2)


@pytest.mark.world_size(2)
@pytest.mark.needs_gpus(1)
@pytest.mark.covers("AG-98", "AG-99")
@pytest.mark.parametrize("root", ["cpu", "cuda"])
def test_graph_that_changes_device(agents: World, root: str) -> None:
    """A graph that goes from CPU to GPU and back between remote calls gives the local gradients, three times over."""
    there = (agents.rank + 1) % agents.size
    leaves = [torch.rand(3, 3, requires_grad=True), torch.rand(3, 3, device="cuda:0", requires_grad=True)]

    def loss(add: Any) -> torch.Tensor:
        value = add(leaves[0], leaves[0]).cuda(0) * leaves[1]
        return add(value.cpu(), leaves[0]).to(root).sum()

    expected = local_gradients(loss(torch.add), leaves)
    for _ in range(3):
        # A context each: backward waits for every message of its context, those of other graphs as well.
        with dist_autograd.context() as identity:
            dist_autograd.backward(identity, [loss(lambda *args: sync(there, torch.add, *args))])
            assert_gradients(identity, leaves, expected)
            meet(agents)


@pytest.mark.needs_gpus(4)
@pytest.mark.covers("AG-100")
def test_gradients_return_to_the_device_of_their_tensor(world: World) -> None:
    """Result and gradients of a call under device maps are on the caller's own device."""
    with agent(world, options=_options(world)):
        leaves = [torch.rand(10, device=world.device, requires_grad=True) for _ in range(2)]
        with dist_autograd.context() as identity:
            result = sync((world.rank + 1) % world.size, torch.add, *leaves)
            assert result.device == world.device
            dist_autograd.backward(identity, [result.sum()])
            assert_gradients(identity, leaves, [torch.ones(10, device=world.device)] * 2)
            meet(world)


class Remote(nn.Module):
    """A layer on its rank's device."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(width, width, bias=False).to(_device_of(rpc.get_worker_info().id))

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """Through the layer."""
        return self.layer(tensor)

    def gradient(self, context: int) -> torch.Tensor:
        """Of its weight."""
        return dist_autograd.get_gradients(context)[self.layer.weight]


def _gradient(layer: Any, context: int) -> torch.Tensor:
    """Of the weight of a layer of this rank."""
    return layer.local_value().gradient(context)


@pytest.mark.fresh_world
@pytest.mark.needs_gpus(4)
@pytest.mark.covers("AG-101", "AG-102")
def test_streams_are_synchronised(world: World) -> None:
    """Gradients fetched right after backward are complete: large layers, chained over three devices."""
    with agent(world, options=_options(world)):
        if world.is_first:
            width = 2000
            layers = [rpc.remote(worker(rank), Remote, args=(width,)) for rank in (1, 2, 3)]
            here = [Remote(width) for _ in range(3)]
            tensor = torch.rand(1000, width, device=world.device, requires_grad=True)
            for factor in (1.0, 0.5, 3.0):
                expected = tensor
                for layer in here:
                    layer.zero_grad()
                    expected = layer(expected)
                (gradient,) = torch.autograd.grad(expected.sum() * factor, tensor, retain_graph=True)
                (expected.sum() * factor).backward(inputs=[layer.layer.weight for layer in here])
                with dist_autograd.context() as identity:
                    value = tensor
                    for rref in layers:
                        value = rref.rpc_sync().forward(value)
                    dist_autograd.backward(identity, [value.sum() * factor])
                    # Not rref.rpc_async(): its future knows no devices, so that wait() returns before the tensor has
                    # arrived (rref_proxy.py of torch 2.13).
                    futures = [
                        rpc.rpc_async(rref.owner(), _gradient, args=(rref, identity)) for rref in layers
                    ]
                    assert_close(dist_autograd.get_gradients(identity)[tensor], gradient)
                    for future, layer in zip(futures, here, strict=True):
                        assert_close(future.wait(), layer.layer.weight.grad)
            del layers, rref
        meet(world)
