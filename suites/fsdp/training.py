"""A small model, and the training that the sharded one must reproduce."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from disttest.testing import World

WIDTH = 10
"""Not divisible by 4: the last shards are smaller or empty."""


class Block(nn.Module):
    """A layer that is sharded on its own."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, tensor: Tensor) -> Tensor:
        return tensor + self.down(torch.relu(self.up(self.norm(tensor))))


class Model(nn.Module):
    """Two blocks, a scale of one element, and a head."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(width, 3)

    def forward(self, tensor: Tensor) -> Tensor:
        for block in self.blocks:
            tensor = block(tensor)
        return self.head(tensor * self.scale)


def make_model(device: torch.device, width: int = WIDTH) -> Model:
    """The same on every rank."""
    torch.manual_seed(7)
    return Model(width).to(device)


def batches(world: World, steps: int, width: int = WIDTH) -> list[Tensor]:
    """The whole batch of each step: four rows for each rank."""
    generator = torch.Generator().manual_seed(11)
    return [torch.rand(4 * world.size, width, generator=generator).to(world.device) for _ in range(steps)]


def mine(world: World, batch: Tensor) -> Tensor:
    """This rank's rows."""
    return batch.chunk(world.size)[world.rank]


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """A loss whose mean over ranks is that of the whole batch."""
    return model(batch).pow(2).mean()


def adam(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Keeps state for each parameter; hides a gradient that is scaled wrongly."""
    return torch.optim.Adam(parameters, lr=0.02)


def sgd(parameters: Iterable[Any], **options: Any) -> torch.optim.Optimizer:
    """Shows a gradient that is scaled wrongly."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **options)


OptimizerMaker = Callable[[Iterable[Any]], torch.optim.Optimizer]


def reference(
    model: nn.Module, steps: Iterable[Tensor], make_optimizer: OptimizerMaker
) -> list[dict[str, Tensor]]:
    """Parameters after each step of a training in this process alone, on whole batches."""
    model = copy.deepcopy(model)
    optimizer = make_optimizer(model.parameters())
    history = []
    for batch in steps:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        history.append({name: value.detach().clone() for name, value in model.named_parameters()})
    return history


def whole(parameter: Tensor) -> Tensor:
    """The full value of a parameter that may be sharded."""
    full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return full.detach()


def assert_parameters(model: nn.Module, expected: dict[str, Tensor], **tolerance: Any) -> None:
    """The sharded model holds these values."""
    found = {name: whole(value).to(expected[name].device) for name, value in model.named_parameters()}
    assert found.keys() == expected.keys()
    assert_close(found, expected, **tolerance)
