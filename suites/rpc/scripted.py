"""TorchScript functions; scripted when first asked for, so that a torch without it can import the suite."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed.rpc as rpc
from torch import Tensor

from .shim import missing_torchscript


def weighted_sum(left: Tensor, right: Tensor, weight: float = 2.0) -> Tensor:
    """left + weight * right."""
    return left + weight * right


def fail_scripted(tensor: Tensor) -> Tensor:
    """Raise from TorchScript."""
    if tensor.numel() > 0:
        raise RuntimeError("scripted on purpose")
    return tensor


def add_referred(rref: rpc.RRef[Tensor], right: Tensor) -> Tensor:
    """Add to the value of a reference."""
    return torch.add(rref.to_here(), right)


@cache
def script(function: Any) -> Any:
    """Scripted form of a function of this module; skips the test where torch cannot script."""
    if reason := missing_torchscript():
        pytest.skip(reason)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(function)
