"""Small models that show one thing each. All in double precision, so that comparisons can be tight."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

WIDTH = 6
DOUBLE = torch.float64


def linear(inputs: int = WIDTH, outputs: int = WIDTH, *, bias: bool = False) -> nn.Linear:
    """One layer in double precision."""
    return nn.Linear(inputs, outputs, bias=bias, dtype=DOUBLE)


class Perceptron(nn.Module):
    """Three layers, one frozen bias and an integer parameter that takes no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = linear(2, 10)
        self.second = linear(10, 20, bias=True)
        self.third = linear(20, 4)
        self.second.bias.requires_grad_(False)
        self.constant = nn.Parameter(torch.tensor([2, 2]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x).relu()).relu()).softmax(dim=1)


class TwoHeads(nn.Module):
    """Two layers side by side, both fed with the input; a third is never used when asked for."""

    def __init__(self, *, unused: bool = False) -> None:
        super().__init__()
        self.a = linear()
        self.b = linear(WIDTH, 1)
        if unused:
            self.c = linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x), self.b(x)


class Switch(nn.Module):
    """The second layer takes part only where the caller says so."""

    def __init__(self) -> None:
        super().__init__()
        self.first = linear()
        self.second = linear()

    def forward(self, x: Tensor, *, both: bool) -> Tensor:
        hidden = self.first(x).relu()
        return self.second(hidden) if both else hidden


class Counter(nn.Module):
    """A layer and a buffer that each forward increases by one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()
        self.register_buffer("steps", torch.zeros(2, dtype=DOUBLE))

    def forward(self, x: Tensor) -> Tensor:
        self.steps.add_(1)
        return self.layer(x) + self.steps.sum() * 0


class Apply(nn.Module):
    """A layer, and whatever function of layer and input the test wants as the forward."""

    def __init__(self, function: Callable[..., object], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = linear() if layer is None else layer
        self.function = function

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.function(self.layer, *args, **kwargs)
