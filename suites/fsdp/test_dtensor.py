"""DTensors: placements, redistribution, sharded operators, tensor parallel layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing import assert_close

from disttest.testing import World

from .training import sgd, whole

pytestmark = pytest.mark.world_size(2, 4)

PLACEMENTS = [Replicate(), Shard(0), Shard(1), Partial()]


def _mesh(world: World) -> DeviceMesh:
    return init_device_mesh(world.device_type, (world.size,))


def _value(world: World, *shape: int) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    return torch.arange(float(count), device=world.device).reshape(shape)


def _share(world: World, value: Tensor, placement: Any) -> Tensor:
    if not isinstance(placement, Shard):
        return value
    shares = value.chunk(world.size, placement.dim)
    return shares[world.rank] if world.rank < len(shares) else value.narrow(placement.dim, 0, 0)


@pytest.mark.parametrize("placement", PLACEMENTS[:3], ids=str)
@pytest.mark.parametrize("rows", [4, 5, 3])
def test_each_rank_gets_its_share(world: World, placement: Any, rows: int) -> None:
    """Each rank's part is its chunk, possibly empty, or the whole when replicated; put together it is the value again."""
    value = _value(world, rows, 6)
    tensor = distribute_tensor(value, _mesh(world), [placement])
    assert_close(tensor.to_local(), _share(world, value, placement))
    assert_close(tensor.full_tensor(), value)
    assert tensor.shape == value.shape


@pytest.mark.parametrize("target", PLACEMENTS[:3], ids=str)
@pytest.mark.parametrize("source", PLACEMENTS, ids=str)
def test_redistribution_keeps_the_value(world: World, source: Any, target: Any) -> None:
    """From every placement, partial sums included, to every other: each rank's part and the whole value are right."""
    value = _value(world, 5, 6)
    if isinstance(source, Partial):
        weights = torch.arange(1.0, world.size + 1, device=world.device)
        local = value * weights[world.rank] / weights.sum()
    else:
        local = _share(world, value, source)
    tensor = DTensor.from_local(local, _mesh(world), [source], shape=value.shape, stride=value.stride())
    moved = tensor.redistribute(placements=[target])
    assert moved.placements == (target,)
    assert_close(moved.to_local(), _share(world, value, target))
    assert_close(moved.full_tensor(), value)


@pytest.mark.parametrize("right", PLACEMENTS[:3], ids=str)
@pytest.mark.parametrize("left", PLACEMENTS[:3], ids=str)
def test_product_of_sharded_matrices(world: World, left: Any, right: Any) -> None:
    """For each pair of placements, the product and both gradients are those of whole matrices."""
    mesh = _mesh(world)
    a, b = _value(world, 5, 8) / 10, _value(world, 8, 3) / 10
    one, other = (value.clone().requires_grad_() for value in (a, b))
    sharded = [
        distribute_tensor(value, mesh, [placement]).requires_grad_()
        for value, placement in ((a, left), (b, right))
    ]
    product = sharded[0] @ sharded[1]
    (one @ other).pow(2).sum().backward()
    assert_close(product.full_tensor(), a @ b)
    product.pow(2).sum().backward()
    assert_close([value.grad.full_tensor() for value in sharded], [one.grad, other.grad])


@pytest.mark.parametrize("dim", [0, 1])
def test_operators_on_shards(world: World, dim: int) -> None:
    """Sum, mean, ReLU, softmax, transpose and reshape of a sharded tensor equal those of the whole one."""
    value = _value(world, 8, 8).sub(10)
    tensor = distribute_tensor(value, _mesh(world), [Shard(dim)])
    for operation in (
        lambda t: t.sum(),
        lambda t: t.mean(0),
        lambda t: t.relu() + 1,
        lambda t: t.softmax(-1),
        lambda t: t.t(),
        lambda t: t.reshape(64),
    ):
        assert_close(operation(tensor).full_tensor(), operation(value))


class Sandwich(nn.Module):
    """A use of tensor parallelism."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, tensor: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(self.norm(tensor))))


def _sandwich(world: World) -> Sandwich:
    torch.manual_seed(3)
    return Sandwich().to(world.device)


PLANS: dict[str, dict[str, Any]] = {
    "columns and rows": {"up": ColwiseParallel(), "down": RowwiseParallel()},
    "sequence": {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(),
    },
}


@pytest.mark.parametrize("plan", PLANS)
def test_parallel_layers_train_like_whole_ones(world: World, plan: str) -> None:
    """Every rank has the whole batch, and a part of each layer."""
    model, alone = _sandwich(world), _sandwich(world)
    mesh = _mesh(world)
    parallelize_module(model, mesh, PLANS[plan])
    assert model.up.weight.placements == (Shard(0),)
    assert model.down.weight.placements == (Shard(1),)
    # On GPUs torch steps lists of tensors by default, and refuses a list of Tensors and DTensors, which "columns and
    # rows" leaves: github.com/pytorch/pytorch/issues/183207.
    optimizers = [sgd(each.parameters(), foreach=False) for each in (model, alone)]
    for batch in (torch.rand(3, 8, 8, device=world.device) for _ in range(3)):
        outputs = []
        for each, optimizer in zip((model, alone), optimizers, strict=True):
            optimizer.zero_grad()
            parts = plan == "sequence" and each is model
            output = each(distribute_tensor(batch, mesh, [Shard(1)]) if parts else batch)
            output.pow(2).mean().backward()
            optimizer.step()
            outputs.append(whole(output))
        assert_close(*outputs)
    for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert_close(whole(parameter), expected.detach())


def test_module_distributed_by_a_function(world: World) -> None:
    """A module sharded by a user's function, its inputs replicated by another, gives the plain module's output."""

    def shard_rows(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for key, parameter in module.named_parameters(recurse=False):
            module.register_parameter(key, nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)])))

    alone = _sandwich(world)
    model = distribute_module(
        _sandwich(world),
        _mesh(world),
        shard_rows,
        input_fn=lambda _, inputs, mesh: tuple(distribute_tensor(i, mesh, [Replicate()]) for i in inputs),
    )
    batch = torch.rand(4, 8, device=world.device)
    assert_close(model(batch).full_tensor(), alone(batch))


@pytest.mark.world_size(4)
def test_sharded_data_and_tensor_parallel_together(world: World) -> None:
    """A 2 by 2 mesh: pairs of ranks share a layer, and two pairs share the batch."""
    mesh = init_device_mesh(world.device_type, (2, 2), mesh_dim_names=("data", "tensor"))
    model, alone = _sandwich(world), _sandwich(world)
    parallelize_module(model, mesh["tensor"], PLANS["columns and rows"])
    fully_shard(model, mesh=mesh["data"])
    assert len(model.up.weight.placements) == 2
    optimizers = [sgd(each.parameters()) for each in (model, alone)]
    for _ in range(3):
        batch = torch.rand(8, 8, device=world.device)
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(batch.chunk(2)[mesh["data"].get_local_rank()]).pow(2).mean().backward()
        alone(batch).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
            assert_close(whole(parameter), expected.detach())


def test_wrong_shapes_are_refused(world: World) -> None:
    """Two placements for a mesh of one dimension raise ``ValueError``."""
    with pytest.raises(ValueError, match=r"must have the same length|placements"):
        distribute_tensor(_value(world, 4, 4), _mesh(world), [Shard(0), Shard(1)])
