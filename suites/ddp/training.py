"""How the tests train: a model, its copy on one process, and the comparison of both."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from disttest.testing.world import World

from ..replicas import assert_same_everywhere
from .models import DOUBLE, WIDTH


def wrap(world: World, module: nn.Module, **options: Any) -> DistributedDataParallel:
    """The module on this rank's device, wrapped."""
    on_gpu = world.device.type != "cpu" and any(p.numel() for p in module.parameters())
    devices = [world.device.index] if on_gpu else None
    return DistributedDataParallel(module.to(world.device), device_ids=devices, **options)


def ignoring(world: World, module: nn.Module, *names: str) -> nn.Module:
    """The module on this rank's device, these parameters and buffers marked as not DDP's.

    It is moved first: on its way to another device a module gets new buffers, without the marks, and parameters
    that no longer feed the hooks they had.
    """
    module.to(world.device)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, list(names))
    return module


def twin(world: World, module: nn.Module) -> nn.Module:
    """A copy for one process alone, on the same device."""
    return copy.deepcopy(module).to(world.device)


def require_option(name: str) -> None:
    """Skip unless this torch's DDP takes the argument."""
    if name not in inspect.signature(DistributedDataParallel.__init__).parameters:
        pytest.skip(f"DistributedDataParallel of torch {torch.__version__} has no {name}")


def batches(world: World, steps: int, *, per_rank: int = 2, width: int = WIDTH) -> list[Tensor]:
    """One batch of inputs for the whole world per step: the same on every rank, since all are seeded alike."""
    return list(torch.randn(steps, world.size * per_rank, width, dtype=DOUBLE).to(world.device))


def share(world: World, batch: Tensor) -> Tensor:
    """The part of a batch that this rank computes."""
    return batch.tensor_split(world.size)[world.rank]


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    """Copies of the gradients by parameter name, the wrapper's prefix left out."""
    return {
        name.removeprefix("module."): None if parameter.grad is None else parameter.grad.detach().clone()
        for name, parameter in module.named_parameters()
    }


def parameters(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the parameters by name, the wrapper's prefix left out."""
    return {n.removeprefix("module."): p.detach().clone() for n, p in module.named_parameters()}


def assert_gradients_equal(one: nn.Module, other: nn.Module) -> None:
    """Both modules hold the same gradients, None where the other has None."""
    left, right = gradients(one), gradients(other)
    assert left.keys() == right.keys()
    for name in left:
        assert (left[name] is None) == (right[name] is None), f"{name}: only one of the two has a gradient"
        if left[name] is not None:
            torch.testing.assert_close(left[name], right[name], msg=lambda text, name=name: f"{name}: {text}")


def assert_parameters_equal(one: nn.Module, other: nn.Module) -> None:
    """Both modules hold the same parameters."""
    torch.testing.assert_close(parameters(one), parameters(other))


def assert_synchronised(world: World, module: nn.Module) -> None:
    """All ranks hold exactly the same gradients."""
    assert_same_everywhere(world, gradients(module))


def descend(*modules: nn.Module, rate: float = 0.1) -> None:
    """One step of plain gradient descent, then no gradients."""
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter -= rate * parameter.grad
    for module in modules:
        module.zero_grad(set_to_none=True)


def differ_by_rank(world: World, module: nn.Module) -> nn.Module:
    """The module with values of this rank's own, in parameters and floating buffers."""
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                tensor += world.rank + 1
    return module
