"""Functions that the tests call on other ranks."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import Tensor

from ..rpc.agents import worker
from .tensors import assert_same

own_tensor = torch.ones(3, 3, requires_grad=True)
"""One in each process; a call that returns it brings a gradient here."""


class FailInBackward(torch.autograd.Function):
    """The identity, whose backward raises while ``broken``."""

    broken = True

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if FailInBackward.broken:
            raise RuntimeError("broken on purpose in backward")
        return gradient


def add(left: Tensor, right: Tensor) -> Tensor:
    """A Python function where ``torch.add`` would do."""
    return torch.add(left, right)


def add_numbers(left: float, right: float) -> float:
    """No tensors at all."""
    return left + right


def add_along(left: Tensor, right: Tensor, path: list[int]) -> Tensor:
    """Add, on the last rank of the path."""
    if path:
        return rpc.rpc_sync(worker(path[0]), add_along, args=(left, right, path[1:]))
    return add(left, right)


def fail_along(left: Tensor, right: Tensor, path: list[int]) -> Tensor:
    """Add on the last rank of the path, with a backward that fails there."""
    if path:
        return rpc.rpc_sync(worker(path[0]), fail_along, args=(left, right, path[1:]))
    return FailInBackward.apply(left + right)


def nested(left: Tensor, right: Tensor, rank: int) -> Tensor:
    """A small graph, one of whose nodes is on yet another rank."""
    product = left * right
    elsewhere = rpc.rpc_sync(worker(rank), add, args=(left, right))
    return left * right * product * elsewhere * (product + elsewhere)


def nested_locally(left: Tensor, right: Tensor) -> Tensor:
    """The result of ``nested``, computed locally."""
    product, elsewhere = left * right, left + right
    return left * right * product * elsewhere * (product + elsewhere)


def linear_chain(*tensors: Tensor) -> Tensor:
    """Several operators in one call."""
    first = torch.nn.functional.linear(tensors[0], tensors[1], tensors[2])
    second = torch.nn.functional.linear(first, tensors[1], tensors[2])
    return torch.linalg.multi_dot([first, second, tensors[0], tensors[1]])


def by_flag(left: Tensor, right: Tensor) -> Tensor:
    """Tells by its result whether the flag of the second tensor has travelled."""
    return left - right if right.requires_grad else left * right


def give_own_tensor() -> Tensor:
    """A tensor of this process that wants a gradient."""
    return own_tensor


def own_gradient(context: int) -> list[Tensor]:
    """Return this process's gradients in a context."""
    return list(dist_autograd.get_gradients(context).values())


def add_to_reference(rref: Any, right: Tensor) -> Tensor:
    """Add to the value of a reference, on its owner."""
    return torch.add(rref.local_value(), right)


def add_to_reference_elsewhere(rref: Any, right: Tensor, rank: int) -> Tensor:
    """Have the owner add."""
    return rpc.rpc_sync(worker(rank), add_to_reference, args=(rref, right))


def slow_sum(left: Tensor, right: Tensor) -> Tensor:
    """A leaf that comes into being a while after it was asked for."""
    time.sleep(0.3)
    return (left + right).detach().requires_grad_()


def owner_has_gradient(context: int, rref: Any, expected: Tensor) -> bool:
    """Whether the value of a reference has this gradient in the context, on its owner."""
    assert_same(dist_autograd.get_gradients(context)[rref.local_value()], expected)
    return True
