"""The contributions of the ranks. All ranks have the same seed, so each can compute the data of every other one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from disttest.testing.world import World

ReduceOp = dist.ReduceOp


@dataclass(frozen=True)
class Members:
    """The ranks of a group, as this rank sees them."""

    ranks: list[int]
    group: Any
    """None for the default group."""
    world: World

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    @property
    def takes_part(self) -> bool:
        """Whether this rank is a member."""
        return self.world.rank in self.ranks

    @property
    def index(self) -> int:
        """This rank's number in the group."""
        return self.ranks.index(self.world.rank)


def all_of(world: World) -> Members:
    """All ranks of the world, as the members of its default group."""
    return Members(list(range(world.size)), None, world)


def contributions(members: Members, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """One tensor per member, all different, on this rank's device; small whole numbers."""
    if dtype == torch.bool:
        values = torch.randint(0, 2, (members.size, *shape))
    elif dtype.is_complex:
        values = torch.complex(*torch.randint(1, 4, (2, members.size, *shape)).float())
    else:
        values = torch.randint(1, 4, (members.size, *shape))
        # The first element tells who sent it.
        values.view(members.size, -1)[:, 0] = torch.arange(members.size) % 100 + 1
    return values.to(dtype).to(members.world.device)


def addends(members: Members, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Powers of two: sums in bfloat16 and products in float32 are exact in any order, in groups of up to 60 members."""
    values = contributions(members, *shape, dtype=dtype)
    if dtype == torch.bool or dtype.is_complex:
        return values
    return (2 ** ((values.long() - 1) % 3)).to(dtype)


def mine(members: Members, data: Tensor) -> Tensor:
    """A copy of what this rank contributes."""
    return data[members.index].clone()


def assert_completed(world: World, work: dist.Work) -> None:
    """The handle, waited for already, says that it is completed.

    On a GPU ``wait`` holds up the stream and not the host, so the host waits for the device first.
    """
    if world.device.type != "cpu":
        torch.accelerator.synchronize()
    assert work.is_completed()


_FOLDS = {
    ReduceOp.SUM: lambda a, b: a | b if a.dtype == torch.bool else a + b,
    ReduceOp.PRODUCT: lambda a, b: a & b if a.dtype == torch.bool else a * b,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def reduced(data: Tensor, op: Any) -> Tensor:
    """The reduction of all contributions."""
    if op == ReduceOp.AVG:
        return data.sum(dim=0) / len(data)
    fold = next(function for kind, function in _FOLDS.items() if kind == op)
    result = data[0].clone()
    for other in data[1:]:
        result = fold(result, other)
    return result


def all_gather_single(output: Tensor, source: Tensor, **options: Any) -> Any:
    """The one-tensor gather under its new name, or its old one where that is all there is."""
    function = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return function(output, source, **options)


def reduce_scatter_single(output: Tensor, source: Tensor, **options: Any) -> Any:
    """The one-tensor reduce-scatter under its new name, or its old one where that is all there is."""
    function = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return function(output, source, **options)


def exactly(got: Any, expected: Any) -> None:
    """Same values, same types, no tolerance."""
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
