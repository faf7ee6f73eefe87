"""FSDP1: ``FullyShardedDataParallel`` trains like one process."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy
from torch.testing import assert_close

from disttest.testing import World

from .training import Block, adam, batches, loss_of, make_model, mine, reference, sgd

pytestmark = pytest.mark.world_size(2, 4)

POLICIES = {
    "root only": None,
    "blocks": ModuleWrapPolicy({Block}),
    "by size": functools.partial(size_based_auto_wrap_policy, min_num_params=100),
}


def _wrapped(world: World, model: nn.Module, **kwargs: Any) -> FullyShardedDataParallel:
    kwargs = {"use_orig_params": True, "auto_wrap_policy": POLICIES["blocks"], **kwargs}
    return FullyShardedDataParallel(model, device_id=world.device, **kwargs)


def _parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    """Whole values, on every rank."""
    config = FullStateDictConfig(offload_to_cpu=False, rank0_only=False)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _train(world: World, model: nn.Module, steps: Any, make_optimizer: Any) -> list[dict[str, torch.Tensor]]:
    optimizer = make_optimizer(model.parameters())
    history = []
    for batch in steps:
        optimizer.zero_grad()
        loss_of(model, mine(world, batch)).backward()
        optimizer.step()
        history.append(_parameters(model))
    return history


@pytest.mark.parametrize("make_optimizer", [sgd, adam])
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_training_equals_one_process(world: World, strategy: str, make_optimizer: Any) -> None:
    """After each of three steps, for every strategy, the whole parameters are those of one process on the whole batch."""
    model, steps = make_model(world.device), batches(world, 3)
    expected = reference(model, steps, make_optimizer)
    sharded = _wrapped(world, model, sharding_strategy=ShardingStrategy[strategy])
    for found, values in zip(_train(world, sharded, steps, make_optimizer), expected, strict=True):
        assert_close(found, values)


@pytest.mark.parametrize("use_orig_params", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_way_to_wrap(world: World, policy: str, use_orig_params: bool) -> None:
    """Two steps give one process's parameters, whatever is wrapped and with or without original parameters."""
    model, steps = make_model(world.device), batches(world, 2)
    expected = reference(model, steps, sgd)
    sharded = _wrapped(world, model, auto_wrap_policy=POLICIES[policy], use_orig_params=use_orig_params)
    assert_close(_train(world, sharded, steps, sgd)[-1], expected[-1])


@pytest.mark.parametrize("prefetch", [None, *BackwardPrefetch], ids=str)
def test_prefetching_changes_nothing(world: World, prefetch: Any) -> None:
    """Two steps give one process's parameters in every prefetching order."""
    model, steps = make_model(world.device), batches(world, 2)
    expected = reference(model, steps, sgd)
    sharded = _wrapped(world, model, backward_prefetch=prefetch, forward_prefetch=prefetch is not None)
    assert_close(_train(world, sharded, steps, sgd)[-1], expected[-1])


def test_gradients_accumulate_without_synchronisation(world: World) -> None:
    """Under ``no_sync`` each rank holds its whole gradients; after one more batch outside, the gradients of all are summed."""
    model, steps = make_model(world.device), batches(world, 3)
    plain = make_model(world.device)
    sharded = _wrapped(world, model)
    with sharded.no_sync():
        for batch in steps[:-1]:
            loss_of(sharded, mine(world, batch)).backward()
        held = sum(parameter.grad.numel() for parameter in sharded.parameters())
        assert held >= sum(parameter.numel() for parameter in plain.parameters()), (
            "reduced and sharded already"
        )
    loss_of(sharded, mine(world, steps[-1])).backward()
    for batch in steps:
        loss_of(plain, batch).backward()
    with FullyShardedDataParallel.summon_full_params(sharded, with_grads=True):
        for (name, found), (_, alone) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
            assert_close(found.grad, alone.grad, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_clipping_sees_the_whole_gradient(world: World, norm: float) -> None:
    """The norm returned and the clipped gradients are those of the plain model on the whole batch."""
    model, batch = make_model(world.device), batches(world, 1)[0]
    plain = make_model(world.device)
    sharded = _wrapped(world, model)
    loss_of(sharded, mine(world, batch)).backward()
    loss_of(plain, batch).backward()
    found = sharded.clip_grad_norm_(0.1, norm_type=norm)
    assert_close(found, torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1, norm_type=norm))
    with FullyShardedDataParallel.summon_full_params(sharded, with_grads=True):
        for parameter, alone in zip(model.parameters(), plain.parameters(), strict=True):
            assert_close(parameter.grad, alone.grad)


def test_written_full_parameters_come_back_to_the_shards(world: World) -> None:
    """A change to summoned parameters lasts with ``writeback``, and is gone without."""
    model = make_model(world.device)
    sharded = _wrapped(world, model)
    with FullyShardedDataParallel.summon_full_params(sharded, writeback=True), torch.no_grad():
        model.head.weight.fill_(3.0)
    with FullyShardedDataParallel.summon_full_params(sharded, writeback=False), torch.no_grad():
        model.head.bias.fill_(9.0)
    found = _parameters(sharded)
    assert_close(found["head.weight"], torch.full_like(found["head.weight"], 3.0))
    assert not torch.equal(found["head.bias"], torch.full_like(found["head.bias"], 9.0))


def test_ignored_modules_are_left_alone(world: World) -> None:
    """An ignored module keeps its whole weight and gets a gradient, while the rank holds fewer parameters in all."""
    model = make_model(world.device)
    whole_head = model.head.weight.shape
    sharded = _wrapped(world, model, ignored_modules=[model.head], auto_wrap_policy=None)
    assert model.head.weight.shape == whole_head
    assert sum(p.numel() for p in sharded.parameters()) < sum(
        p.numel() for p in make_model(world.device).parameters()
    )
    loss_of(sharded, mine(world, batches(world, 1)[0])).backward()
    assert model.head.weight.grad is not None


def test_precision_of_parameters_and_of_reduction(world: World) -> None:
    """Layers compute in bfloat16, parameters stay float32, and gradients agree with float32 ones roughly."""
    seen: set[torch.dtype] = set()
    model, batch = make_model(world.device), batches(world, 1)[0]
    plain = make_model(world.device)
    precision = MixedPrecision(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.float32
    )
    sharded = _wrapped(world, model, mixed_precision=precision)
    model.blocks[0].up.register_forward_hook(
        lambda module, args, output: seen.update({args[0].dtype, output.dtype})
    )
    loss_of(sharded, mine(world, batch)).backward()
    loss_of(plain, batch).backward()
    assert seen == {torch.bfloat16}
    with FullyShardedDataParallel.summon_full_params(sharded, with_grads=True):
        for parameter, alone in zip(model.parameters(), plain.parameters(), strict=True):
            assert parameter.dtype == torch.float32
            assert_close(parameter.grad, alone.grad, rtol=0.1, atol=0.02)


@pytest.mark.needs_gpus(1)  # refused for modules on the CPU
def test_states_are_taken_from_the_first_rank(world: World) -> None:
    """With ``sync_module_states``, ranks that start from other values end up with rank 0's."""
    model = make_model(world.device)
    expected = {name: value.detach().clone() for name, value in model.named_parameters()}
    if not world.is_first:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(world.rank)
    assert_close(_parameters(_wrapped(world, model, sync_module_states=True)), expected)


@pytest.mark.needs_gpus(2)
def test_offloaded_training_equals_one_process(world: World) -> None:
    """Sharded parameters are on the CPU, and three steps give one process's parameters."""
    model, steps = make_model(world.device), batches(world, 3)
    expected = reference(model, steps, sgd)
    sharded = _wrapped(world, model, cpu_offload=CPUOffload(offload_params=True))
    assert {parameter.device.type for parameter in sharded.parameters()} == {"cpu"}
    assert_close(_train(world, sharded, steps, sgd)[-1], expected[-1])


def test_cpu_needs_to_be_named(world: World) -> None:
    """On a machine without accelerators, wrapping without a device raises and asks for an accelerator."""
    if world.device_type != "cpu":
        pytest.skip("this machine computes on GPUs")
    with pytest.raises(RuntimeError, match="needs a non-CPU accelerator device"):
        FullyShardedDataParallel(make_model(world.device))
