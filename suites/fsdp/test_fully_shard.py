"""FSDP2: ``fully_shard`` trains like one process."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.testing import assert_close

from disttest.testing import World

from .shim import local_part
from .training import (
    Model,
    adam,
    assert_parameters,
    batches,
    loss_of,
    make_model,
    mine,
    reference,
    sgd,
    whole,
)

pytestmark = pytest.mark.world_size(2, 4)


def _sharded(model: Model, **kwargs: Any) -> Model:
    for block in model.blocks:
        fully_shard(block, **kwargs)
    return fully_shard(model, **kwargs)


@pytest.mark.world_size(1, 2, 4)
@pytest.mark.parametrize("reshard", [True, False, None, 2], ids=lambda value: f"reshard={value}")
@pytest.mark.parametrize("make_optimizer", [sgd, adam])
def test_training_equals_one_process(world: World, make_optimizer: Any, reshard: Any) -> None:
    """After each of four steps, whatever is resharded when, the whole parameters are those of one process on the whole batch."""
    if reshard == 2 and world.size % 2:
        pytest.skip("ranks do not divide into pairs")
    model, steps = make_model(world.device), batches(world, 4)
    expected = reference(model, steps, make_optimizer)
    _sharded(model, reshard_after_forward=reshard)
    optimizer = make_optimizer(model.parameters())
    for batch, values in zip(steps, expected, strict=True):
        optimizer.zero_grad()
        loss_of(model, mine(world, batch)).backward()
        optimizer.step()
        assert_parameters(model, values)


def test_each_rank_holds_its_share(world: World) -> None:
    """Every parameter is a DTensor split by rows, of which each rank has its chunk; the last may be empty."""
    model = make_model(world.device)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    _sharded(model)
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        assert parameter.placements == (Shard(0),)
        expected = before[name].chunk(world.size)
        share = expected[world.rank] if world.rank < len(expected) else before[name][:0]
        assert_close(local_part(parameter), share)


@pytest.mark.parametrize("reshard", [True, False])
def test_parameters_are_whole_between_forward_and_backward_or_not(world: World, reshard: bool) -> None:
    """A weight is sharded after forward only if asked, after backward always, and by hand as ``unshard`` and ``reshard`` say."""
    model = make_model(world.device)
    _sharded(model, reshard_after_forward=reshard)
    loss = loss_of(model, mine(world, batches(world, 1)[0]))
    assert isinstance(model.blocks[0].up.weight, DTensor) == reshard
    loss.backward()
    assert isinstance(model.blocks[0].up.weight, DTensor)
    model.unshard()
    assert not isinstance(model.head.weight, DTensor)
    model.reshard()
    assert isinstance(model.head.weight, DTensor)


def test_accumulated_gradients_are_those_of_the_sum(world: World) -> None:
    """Three batches, communication after the last only, so that no shard has a gradient before; then the same once more."""
    model, steps = make_model(world.device), batches(world, 3)
    plain = make_model(world.device)
    _sharded(model)
    for repetition in range(2):
        for number, batch in enumerate(steps, 1):
            model.set_requires_gradient_sync(number == len(steps))
            loss_of(model, mine(world, batch)).backward()
            loss_of(plain, batch).backward()
            if not repetition and number < len(steps):
                assert all(parameter.grad is None for parameter in model.parameters())
    for (name, parameter), (_, alone) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert_close(whole(parameter.grad), alone.grad, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0])
def test_clipping_sees_the_whole_gradient(world: World, norm: float) -> None:
    """The norm returned and the clipped gradients are those of the plain model on the whole batch."""
    model, batch = make_model(world.device), batches(world, 1)[0]
    plain = make_model(world.device)
    _sharded(model)
    loss_of(model, mine(world, batch)).backward()
    loss_of(plain, batch).backward()
    found = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=norm)
    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1, norm_type=norm)
    assert_close(whole(found), expected)
    for parameter, alone in zip(model.parameters(), plain.parameters(), strict=True):
        assert_close(whole(parameter.grad), alone.grad)


def test_ignored_parameters_are_left_alone(world: World) -> None:
    """Exactly the ignored parameters stay plain tensors, and their gradients are not averaged over ranks."""
    model = make_model(world.device)
    ignored = {model.scale, model.blocks[0].norm.weight}
    fully_shard(model, ignored_params=ignored)
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor) == (parameter not in ignored)
    loss_of(model, mine(world, batches(world, 1)[0])).backward()
    gradients = [torch.zeros_like(model.scale) for _ in range(world.size)]
    dist.all_gather(gradients, model.scale.grad)
    assert not torch.equal(gradients[0], gradients[1]), "nobody averages the gradient of an ignored parameter"


def test_precision_of_parameters_and_of_reduction(world: World) -> None:
    """Computes in bfloat16, keeps and reduces in float32."""
    seen: set[torch.dtype] = set()
    model, batch = make_model(world.device), batches(world, 1)[0]
    plain = make_model(world.device)
    inner = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=inner)
    fully_shard(model, mp_policy=dataclasses.replace(inner, output_dtype=torch.float64))
    model.blocks[0].up.register_forward_hook(
        lambda module, args, output: seen.update({args[0].dtype, module.weight.dtype, output.dtype})
    )
    output = model(mine(world, batch))
    assert seen == {torch.bfloat16}
    assert output.dtype == torch.float64
    output.pow(2).mean().backward()
    loss_of(plain, batch).backward()
    for parameter, alone in zip(model.parameters(), plain.parameters(), strict=True):
        assert parameter.dtype == torch.float32
        assert parameter.grad.dtype == torch.float32
        assert_close(whole(parameter.grad), alone.grad, rtol=0.1, atol=0.02)


def test_reduction_in_low_precision_is_visible(world: World) -> None:
    """The same gradients, reduced in bfloat16: every value is one that bfloat16 has."""
    model = make_model(world.device)
    _sharded(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))
    loss_of(model, mine(world, batches(world, 1)[0])).backward()
    for parameter in model.parameters():
        gradient = local_part(parameter.grad)
        assert gradient.dtype == torch.float32
        assert_close(gradient, gradient.bfloat16().float(), rtol=0, atol=0)


@pytest.mark.needs_gpus(2)
def test_offloaded_training_equals_one_process(world: World) -> None:
    """Gradients are on the CPU at each step, and the shards end up equal to one process's parameters."""
    model, steps = make_model(world.device), batches(world, 3)
    expected = reference(model, steps, sgd)
    _sharded(model, offload_policy=CPUOffloadPolicy(pin_memory=False))
    optimizer = sgd(model.parameters())
    for batch in steps:
        optimizer.zero_grad()
        loss_of(model, mine(world, batch)).backward()
        assert {parameter.grad.device.type for parameter in model.parameters()} == {"cpu"}
        optimizer.step()
    found = {name: local_part(value) for name, value in model.named_parameters()}
    for name, value in expected[-1].items():
        shares = value.chunk(world.size)
        share = shares[world.rank] if world.rank < len(shares) else value[:0]
        assert_close(found[name], share.cpu())


def test_initialisation_on_the_meta_device(world: World) -> None:
    """Shard without memory, allocate shards only, then fill them."""
    with torch.device("meta"):
        model = Model()
    _sharded(model)
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device=world.device)
    values = dict(make_model(world.device).named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(dist_tensor(values[name], parameter))
    steps = batches(world, 2)
    expected = reference(make_model(world.device), steps, sgd)
    optimizer = sgd(model.parameters())
    for batch in steps:
        optimizer.zero_grad()
        loss_of(model, mine(world, batch)).backward()
        optimizer.step()
    assert_parameters(model, expected[-1])


def dist_tensor(value: torch.Tensor, like: Any) -> Any:
    """A value, sharded like a parameter."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.detach(), like.device_mesh, like.placements)


@pytest.mark.world_size(4)
def test_hybrid_sharding_equals_one_process(world: World) -> None:
    """Two replicas, each sharded over two ranks."""
    mesh = init_device_mesh(world.device_type, (2, 2), mesh_dim_names=("replicate", "shard"))
    model, steps = make_model(world.device), batches(world, 3)
    expected = reference(model, steps, sgd)
    _sharded(model, mesh=mesh)
    optimizer = sgd(model.parameters())
    for batch, values in zip(steps, expected, strict=True):
        optimizer.zero_grad()
        loss_of(model, mine(world, batch)).backward()
        optimizer.step()
        assert_parameters(model, values)
    assert local_part(model.head.weight).shape[0] in (1, 2)


def test_frozen_weight_gets_no_gradient(world: World) -> None:
    """A frozen weight gets no gradient, and the bias next to it gets one."""
    model, batch = make_model(world.device), batches(world, 1)[0]
    model.head.weight.requires_grad_(False)
    _sharded(model)
    loss_of(model, mine(world, batch)).backward()
    assert model.head.weight.grad is None
    assert model.head.bias.grad is not None


def test_module_without_forward_of_its_own_can_not_be_sharded(world: World) -> None:
    """Sharding a ``ModuleList`` raises ``ValueError`` and says that containers are not supported."""
    with pytest.raises(ValueError, match="does not support containers"):
        fully_shard(make_model(world.device).blocks)


def test_gradients_are_divided_by_what_was_asked(world: World) -> None:
    """With a divisor of 1 the gradient is the sum over ranks: the averaged one times the world's size."""
    model, batch = make_model(world.device), batches(world, 1)[0]
    plain = make_model(world.device)
    _sharded(model)
    for module in (model, *model.blocks):
        module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
        module.set_gradient_divide_factor(1.0)
    loss_of(model, mine(world, batch)).backward()
    loss_of(plain, batch).backward()
    assert_close(whole(model.scale.grad), plain.scale.grad * world.size)
