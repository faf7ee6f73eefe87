"""Reductions and broadcast: the result is the fold of the values of all members of the group, and of no other rank."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from disttest.testing.world import World

from ..replicas import assert_same_everywhere
from .data import (
    Members,
    ReduceOp,
    addends,
    all_of,
    assert_completed,
    contributions,
    exactly,
    mine,
    reduce_scatter_single,
    reduced,
)

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]

ARITHMETIC = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
BITWISE = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
NUMBERS = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]


def _name(value: object) -> str:
    return str(value).rpartition(".")[2].lower()


@pytest.mark.covers("CD-060", "CD-061", "CD-062", "CD-063")
@pytest.mark.parametrize("dtype", [*NUMBERS, torch.bool, torch.complex64], ids=_name)
def test_broadcast(members: Members, dtype: torch.dtype) -> None:
    """From each source in turn, its values and no others arrive on every member; the source keeps its own."""
    data = contributions(members, 3, 2, dtype=dtype)
    if not members.takes_part:
        return
    for index, source in enumerate(members.ranks):
        tensor = mine(members, data)
        dist.broadcast(tensor, src=source, group=members.group)
        exactly(tensor, data[index])


@pytest.mark.covers("CD-060")
def test_broadcast_from_group_rank(members: Members) -> None:
    """A source may be named by its number in the group."""
    data = contributions(members, 3)
    if not members.takes_part:
        return
    last = members.size - 1
    tensor = mine(members, data)
    dist.broadcast(tensor, group=members.group, group_src=last)
    exactly(tensor, data[last])


@pytest.mark.covers("CD-060")
@pytest.mark.parametrize("value", [-1e-10, -1e-100, 1e15, float("inf"), -0.0])
def test_broadcast_keeps_every_bit(world: World, value: float) -> None:
    """Extreme doubles arrive as they are: nothing is narrowed on the way."""
    source = world.size - 1
    tensor = torch.full(
        (5,), value if world.rank == source else 3.0, dtype=torch.float64, device=world.device
    )
    dist.broadcast(tensor, src=source)
    assert (
        tensor.view(torch.int64).tolist()
        == [torch.tensor(value, dtype=torch.float64).view(torch.int64).item()] * 5
    )


@pytest.mark.covers(
    "CD-082", "CD-084", "CD-089", "CD-090", "CD-091", "CD-092", "CD-093", "CD-094", "CD-095", "CD-096", "CD-097",
    "CD-098", "CD-099",
)  # fmt: skip
@pytest.mark.parametrize("op", ARITHMETIC, ids=_name)
def test_all_reduce(members: Members, op: ReduceOp) -> None:
    """Every member ends with the fold of all members' values; other ranks keep their value."""
    data = addends(members, 3, 2)
    if not members.takes_part:
        return
    tensor = mine(members, data)
    assert dist.all_reduce(tensor, op=op, group=members.group) is None
    exactly(tensor, reduced(data, op))


@pytest.mark.covers("CD-082", "CD-084")
@pytest.mark.parametrize("dtype", NUMBERS, ids=_name)
def test_all_reduce_of_each_type(world: World, dtype: torch.dtype) -> None:
    """Sums are right, and keep their type, for each kind of number."""
    everybody = all_of(world)
    data = addends(everybody, 7, dtype=dtype)
    tensor = mine(everybody, data)
    dist.all_reduce(tensor)
    exactly(tensor, reduced(data, ReduceOp.SUM))


@pytest.mark.covers("CD-082")
def test_all_reduce_in_double_precision(world: World) -> None:
    """A sum of doubles keeps what single precision would lose."""
    tensor = torch.full((2,), 1 + 2.0**-40, dtype=torch.float64, device=world.device)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world.size * (1 + 2.0**-40)] * 2


@pytest.mark.covers("CD-082")
@pytest.mark.parametrize("shape", [(), (0,), (1,), (257,), (2, 3, 5), (70_000,)], ids=str)
def test_all_reduce_of_each_shape(world: World, shape: tuple[int, ...]) -> None:
    """Scalars, empty tensors, odd lengths and long ones are reduced in every element."""
    values = torch.arange(torch.Size(shape).numel(), dtype=torch.float64, device=world.device).reshape(shape)
    tensor = values * (world.rank + 1) + world.rank
    dist.all_reduce(tensor)
    ranks = range(world.size)
    exactly(tensor, values * sum(rank + 1 for rank in ranks) + sum(ranks))


@pytest.mark.covers("CD-083", "CD-085")
def test_all_reduce_async(members: Members) -> None:
    """The handle of an asynchronous reduction waits until the values are there."""
    data = addends(members, 1000)
    if not members.takes_part:
        return
    tensor = mine(members, data)
    work = dist.all_reduce(tensor, group=members.group, async_op=True)
    work.wait()
    exactly(tensor, reduced(data, ReduceOp.SUM))
    assert_completed(members.world, work)


@pytest.mark.covers("CD-086", "CD-088")
def test_all_reduce_complex(members: Members) -> None:
    """Complex sums add both parts."""
    data = addends(members, 4, dtype=torch.complex64)
    if not members.takes_part:
        return
    tensor = mine(members, data)
    dist.all_reduce(tensor, group=members.group)
    exactly(tensor, reduced(data, ReduceOp.SUM))


@pytest.mark.covers("CD-087", "CD-102")
@pytest.mark.parametrize("op", [ReduceOp.MAX, ReduceOp.MIN, ReduceOp.PRODUCT, *BITWISE], ids=_name)
def test_complex_has_sums_only(world: World, op: ReduceOp) -> None:
    """Any other reduction of complex numbers is an error, raised before anything travels."""
    tensor = torch.ones(2, dtype=torch.complex64, device=world.device)
    with pytest.raises(ValueError, match="all_reduce does not support"):
        dist.all_reduce(tensor, op=op)
    with pytest.raises(ValueError, match="all_reduce does not support"):
        dist.all_reduce_coalesced([tensor], op=op)


@pytest.mark.needs("bitwise_reduce")
@pytest.mark.covers("CD-082")
@pytest.mark.parametrize("op", BITWISE, ids=_name)
@pytest.mark.parametrize("dtype", [torch.int32, torch.bool], ids=_name)
def test_all_reduce_bitwise(world: World, dtype: torch.dtype, op: ReduceOp) -> None:
    """And, or and exclusive or, bit by bit."""
    everybody = all_of(world)
    data = contributions(everybody, 16, dtype=dtype)
    tensor = mine(everybody, data)
    dist.all_reduce(tensor, op=op)
    exactly(tensor, reduced(data, op))


@pytest.mark.needs("avg")
@pytest.mark.covers("CD-082")
def test_all_reduce_average(world: World) -> None:
    """AVG is the mean over ranks."""
    tensor = torch.full((3,), float(world.rank), device=world.device)
    dist.all_reduce(tensor, op=ReduceOp.AVG)
    exactly(tensor, torch.full_like(tensor, (world.size - 1) / 2))


@pytest.mark.needs("premul_sum")
@pytest.mark.covers("CD-082")
def test_all_reduce_premultiplied(world: World) -> None:
    """PREMUL_SUM multiplies by a factor, then adds."""
    tensor = torch.full((3,), float(world.rank + 1), device=world.device)
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
    exactly(tensor, torch.full_like(tensor, world.size * (world.size + 1) / 4))


@pytest.mark.covers("CD-177")
@pytest.mark.parametrize("op", ARITHMETIC, ids=_name)
@pytest.mark.parametrize("pattern", ["alternating", "all-true", "mixed"])
def test_all_reduce_bool(world: World, pattern: str, op: ReduceOp) -> None:
    """On truth values product and minimum mean *and*, sum and maximum mean *or*."""
    everybody = all_of(world)
    data = addends(everybody, 8, dtype=torch.bool)
    if pattern != "mixed":
        rows = torch.arange(world.size, device=world.device) % 2 == 0
        data = (rows | (pattern == "all-true")).unsqueeze(1).expand(-1, 8)
    tensor = mine(everybody, data)
    dist.all_reduce(tensor, op=op)
    exactly(tensor, data.all(dim=0) if op in (ReduceOp.PRODUCT, ReduceOp.MIN) else data.any(dim=0))


@pytest.mark.covers("CD-179")
@pytest.mark.parametrize("op", ARITHMETIC, ids=_name)
def test_reduce_bool(world: World, op: ReduceOp) -> None:
    """Truth values reduced to rank 0."""
    everybody = all_of(world)
    data = addends(everybody, 8, dtype=torch.bool)
    tensor = mine(everybody, data)
    dist.reduce(tensor, dst=0, op=op)
    if world.is_first:
        exactly(tensor, data.all(dim=0) if op in (ReduceOp.PRODUCT, ReduceOp.MIN) else data.any(dim=0))


@pytest.mark.covers("CD-180")
def test_broadcast_bool(world: World) -> None:
    """Ten truth values of rank 0 arrive everywhere."""
    everybody = all_of(world)
    data = addends(everybody, 10, dtype=torch.bool)
    tensor = mine(everybody, data)
    dist.broadcast(tensor, src=0)
    exactly(tensor, data[0])
    assert_same_everywhere(world, tensor)


@pytest.mark.covers(
    "CD-065", "CD-066", "CD-067", "CD-068", "CD-069", "CD-070", "CD-071", "CD-072", "CD-073", "CD-074", "CD-075",
    "CD-076", "CD-077",
)  # fmt: skip
@pytest.mark.parametrize("op", ARITHMETIC, ids=_name)
def test_reduce(members: Members, op: ReduceOp) -> None:
    """Each member in turn is the destination, and has the fold of all."""
    data = addends(members, 3, 2)
    if not members.takes_part:
        return
    for destination in members.ranks:
        tensor = mine(members, data)
        dist.reduce(tensor, dst=destination, op=op, group=members.group)
        if destination == members.world.rank:
            exactly(tensor, reduced(data, op))


@pytest.mark.covers("CD-078", "CD-079")
def test_reduce_twice(world: World) -> None:
    """Two reductions in a row do not mix."""
    everybody = all_of(world)
    data, other = addends(everybody, 5), addends(everybody, 5)
    first, second = mine(everybody, data), mine(everybody, other)
    works = [
        dist.reduce(first, dst=0, async_op=True),
        dist.reduce(second, dst=0, op=ReduceOp.MAX, async_op=True),
    ]
    for work in works:
        work.wait()
    if world.is_first:
        exactly(first, reduced(data, ReduceOp.SUM))
        exactly(second, reduced(other, ReduceOp.MAX))


def _sparse(rank: int, size: int, sparse_dims: int, dense_dims: int) -> torch.Tensor:
    """Ones at ``rank + 1`` places along the first dimension; the first place is everybody's."""
    indices = torch.zeros(sparse_dims, rank + 1, dtype=torch.int64)
    indices[0] = torch.arange(rank + 1)
    values = torch.ones([rank + 1] + [2] * dense_dims)
    return torch.sparse_coo_tensor(indices, values, [size] * sparse_dims + [2] * dense_dims)


@pytest.mark.needs("sparse")
@pytest.mark.covers("CD-100", "CD-101")
@pytest.mark.parametrize(
    ("sparse_dims", "dense_dims"), [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 3)], ids=str
)
def test_all_reduce_sparse(world: World, sparse_dims: int, dense_dims: int) -> None:
    """Sparse tensors that overlap in part are added up, for all mixes of sparse and dense dimensions."""
    tensor = _sparse(world.rank, world.size, sparse_dims, dense_dims).to(world.device)
    dist.all_reduce(tensor)
    expected = sum(
        _sparse(rank, world.size, sparse_dims, dense_dims).to_dense() for rank in range(world.size)
    )
    exactly(tensor.to_dense().cpu(), expected)


@pytest.mark.needs("coalesced_deprecated")
@pytest.mark.covers(
    "CD-103", "CD-104", "CD-105", "CD-106", "CD-107", "CD-108", "CD-109", "CD-110", "CD-111", "CD-112", "CD-113",
    "CD-114",
)  # fmt: skip
@pytest.mark.parametrize("op", ARITHMETIC, ids=_name)
def test_all_reduce_coalesced(members: Members, op: ReduceOp) -> None:
    """Several tensors in one call are reduced separately, complex ones too where that is supported."""
    kinds = [torch.float32, torch.float32] + ([torch.complex64] if op == ReduceOp.SUM else [])
    data = [addends(members, 2, number + 1, dtype=kind) for number, kind in enumerate(kinds)]
    if not members.takes_part:
        return
    tensors = [mine(members, each) for each in data]
    dist.all_reduce_coalesced(tensors, op=op, group=members.group)
    exactly(tensors, [reduced(each, op) for each in data])


@pytest.mark.needs("coalescing_manager")
@pytest.mark.covers("CD-033", "CD-034")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_coalescing_manager(world: World, asynchronous: bool) -> None:
    """Two reductions under the manager equal one over both tensors."""
    everybody = all_of(world)
    data, other = addends(everybody, 8), addends(everybody, 8)
    tensors = [mine(everybody, data), mine(everybody, other)]
    device = None if world.device.type == "cpu" else world.device  # for the CPU backends it has no device
    with dist._coalescing_manager(device=device, async_ops=asynchronous) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    if asynchronous:
        manager.wait()
    exactly(tensors, [reduced(data, ReduceOp.SUM), reduced(other, ReduceOp.SUM)])


@pytest.mark.covers("CD-080")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
def test_reduce_scatter(world: World, even: bool, asynchronous: bool) -> None:
    """Member k gets the sum of all members' pieces k, with pieces of one size or of different sizes."""
    rows = [2 if even else rank + 1 for rank in range(world.size)]
    pieces = {
        (sender, receiver): torch.full(
            (rows[receiver], 3), float(10 * sender + receiver), device=world.device
        )
        for sender in range(world.size)
        for receiver in range(world.size)
    }
    output = torch.empty(rows[world.rank], 3, device=world.device)
    work = dist.reduce_scatter(
        output, [pieces[world.rank, receiver] for receiver in range(world.size)], async_op=asynchronous
    )
    if asynchronous:
        work.wait()
    exactly(output, sum(pieces[sender, world.rank] for sender in range(world.size)))


@pytest.mark.covers("CD-081")
def test_reduce_scatter_single(world: World) -> None:
    """In one tensor, pieces one after the other."""
    source = torch.arange(2.0 * world.size, device=world.device) * (world.rank + 1)
    output = torch.empty(2, device=world.device)
    reduce_scatter_single(output, source)
    factor = world.size * (world.size + 1) // 2
    exactly(output.cpu(), torch.tensor([2.0 * world.rank, 2.0 * world.rank + 1]) * factor)


@pytest.mark.needs("stacked_single")
@pytest.mark.covers("CD-081")
def test_reduce_scatter_single_stacked(world: World) -> None:
    """In one tensor, pieces stacked along a new dimension."""
    source = torch.arange(2.0 * world.size, device=world.device).reshape(world.size, 2)
    output = torch.empty(2, device=world.device)
    reduce_scatter_single(output, source)
    exactly(output.cpu(), torch.tensor([2.0 * world.rank, 2.0 * world.rank + 1]) * world.size)


@pytest.mark.backend("nccl")
@pytest.mark.needs("high_priority_stream")
@pytest.mark.covers("CD-064")
def test_high_priority_stream(world: World) -> None:
    """A group on a high-priority stream broadcasts as any other."""
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    group = dist.new_group(pg_options=options)
    tensor = torch.full((4,), float(world.rank), device=world.device)
    dist.broadcast(tensor, src=world.size - 1, group=group)
    assert tensor.tolist() == [float(world.size - 1)] * 4
