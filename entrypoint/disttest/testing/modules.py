"""Modules that record the inputs of their ``forward``, to check the dtypes under mixed precision."""

from __future__ import annotations

import torch
from torch import nn

Inputs = dict[nn.Module, torch.Tensor]


class SaveForwardInputsModule(nn.Module):
    """One linear layer of 100 by 100. It can cast its input to the weight's dtype."""

    def __init__(self, forward_inputs: Inputs, cast_forward_inputs: bool) -> None:
        super().__init__()
        self.l = nn.Linear(100, 100)
        self.forward_inputs = forward_inputs
        self.cast_forward_inputs = cast_forward_inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Record the input and apply the layer."""
        self.forward_inputs[self] = x
        result: torch.Tensor = self.l(x.to(self.l.weight.dtype) if self.cast_forward_inputs else x)
        return result


class SaveForwardInputsModel(nn.Module):
    """Two such modules in sequence, with a common record of inputs."""

    def __init__(self, forward_inputs: Inputs, cast_forward_inputs: bool) -> None:
        super().__init__()
        self.c1 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.c2 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.forward_inputs = forward_inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Record the input and apply both layers."""
        self.forward_inputs[self] = x
        result: torch.Tensor = self.c2(self.c1(x))
        return result
