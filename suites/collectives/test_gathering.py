"""Gather, scatter and all-to-all: every piece comes from the right sender and lands in the right slot."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from disttest.testing.world import World

from ..replicas import assert_same_everywhere
from .data import Members, all_gather_single, all_of, contributions, exactly, mine

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]

REAL_AND_COMPLEX = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.complex64], ids=["float", "complex"]
)


@pytest.mark.covers("CD-116", "CD-117", "CD-118", "CD-119", "CD-120", "CD-121")
@REAL_AND_COMPLEX
def test_scatter(members: Members, dtype: torch.dtype) -> None:
    """From each source in turn, member k receives piece k of the source's list."""
    pieces = torch.stack([contributions(members, 3, dtype=dtype) for _ in members.ranks])
    if not members.takes_part:
        return
    for index, source in enumerate(members.ranks):
        output = torch.zeros(3, dtype=dtype, device=members.world.device)
        give = list(pieces[index]) if source == members.world.rank else None
        dist.scatter(output, give, src=source, group=members.group)
        exactly(output, pieces[index][members.index])


@pytest.mark.covers("CD-115")
def test_scatter_defaults(world: World) -> None:
    """Without a source it is rank 0, the only one to give a list; a list from another rank is an error."""
    everybody = all_of(world)
    pieces = contributions(everybody, 3)
    output = torch.zeros(3, device=world.device)
    dist.scatter(output, list(pieces) if world.is_first else None)
    exactly(output, pieces[world.rank])
    if not world.is_first:
        with pytest.raises(
            ValueError, match="should be (None|empty)|must be unspecified|Argument ``scatter_list``"
        ):
            dist.scatter(output, list(pieces))
    else:
        with pytest.raises(ValueError, match="scatter_list"):
            dist.scatter(output)


@pytest.mark.covers("CD-123", "CD-124", "CD-125", "CD-126")
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, pytest.param(torch.complex64, marks=pytest.mark.needs("complex_gather"))],
    ids=["float", "complex"],
)
def test_gather(members: Members, dtype: torch.dtype) -> None:
    """At each destination in turn, slot k holds what member k sent."""
    data = contributions(members, 3, dtype=dtype)
    if not members.takes_part:
        return
    for destination in members.ranks:
        slots = None
        if destination == members.world.rank:
            slots = [torch.zeros(3, dtype=dtype, device=members.world.device) for _ in members.ranks]
        dist.gather(mine(members, data), slots, dst=destination, group=members.group)
        if slots is not None:
            exactly(slots, list(data))


@pytest.mark.covers("CD-122")
def test_gather_defaults(world: World) -> None:
    """Without a destination it is rank 0, the only one to give slots; slots elsewhere are an error."""
    everybody = all_of(world)
    data = contributions(everybody, 3)
    slots = [torch.zeros(3, device=world.device) for _ in data] if world.is_first else None
    dist.gather(mine(everybody, data), slots)
    if slots is not None:
        exactly(slots, list(data))
        with pytest.raises(ValueError, match="gather_list"):
            dist.gather(mine(everybody, data))
    else:
        with pytest.raises(ValueError, match="gather_list"):
            dist.gather(mine(everybody, data), list(data))


@pytest.mark.covers("CD-127", "CD-128", "CD-129", "CD-130", "CD-131", "CD-132")
@REAL_AND_COMPLEX
@pytest.mark.parametrize("length", [1, 7, 1000])
def test_all_gather(members: Members, length: int, dtype: torch.dtype) -> None:
    """On every member, slot k holds what member k sent."""
    data = contributions(members, length, dtype=dtype)
    if not members.takes_part:
        return
    slots = [torch.zeros(length, dtype=dtype, device=members.world.device) for _ in members.ranks]
    dist.all_gather(slots, mine(members, data), group=members.group)
    exactly(slots, list(data))


@pytest.mark.covers("CD-178")
def test_all_gather_bool(world: World) -> None:
    """Truth values arrive, and the sent tensor is unchanged."""
    everybody = all_of(world)
    data = contributions(everybody, 8, dtype=torch.bool)
    sent = mine(everybody, data)
    slots = [torch.zeros_like(sent) for _ in data]
    dist.all_gather(slots, sent)
    exactly(slots, list(data))
    exactly(sent, data[world.rank])


@pytest.mark.needs("uneven_all_gather")
@pytest.mark.covers("CD-133")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_all_gather_uneven(world: World, asynchronous: bool) -> None:
    """Rank k contributes k + 1 rows."""
    sent = torch.full((world.rank + 1, 2), float(world.rank), device=world.device)
    slots = [torch.empty(rank + 1, 2, device=world.device) for rank in range(world.size)]
    work = dist.all_gather(slots, sent, async_op=asynchronous)
    if asynchronous:
        work.wait()
    exactly(slots, [torch.full((r + 1, 2), float(r), device=world.device) for r in range(world.size)])


@pytest.mark.world_size(min=2)
@pytest.mark.backend("gloo")
@pytest.mark.covers("CD-133")
def test_all_gather_uneven_is_refused(world: World) -> None:
    """gloo says that sizes must be equal, before anything is written."""
    slots = [torch.zeros(rank + 1) for rank in range(world.size)]
    with pytest.raises((RuntimeError, ValueError), match="invalid tensor size|same size|size"):
        dist.all_gather(slots, torch.ones(world.rank + 1))


@pytest.mark.covers("CD-134")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_all_gather_single(world: World, asynchronous: bool) -> None:
    """Into one tensor, pieces one after the other."""
    everybody = all_of(world)
    data = contributions(everybody, 2, 2)
    output = torch.zeros(2 * world.size, 2, device=world.device)
    work = all_gather_single(output, mine(everybody, data), async_op=asynchronous)
    if asynchronous:
        work.wait()
    exactly(output, data.flatten(0, 1))


@pytest.mark.needs("stacked_single")
@pytest.mark.covers("CD-135")
def test_all_gather_single_stacked(world: World) -> None:
    """Into one tensor, pieces stacked along a new dimension."""
    everybody = all_of(world)
    data = contributions(everybody, 2, 2)
    output = torch.zeros(world.size, 2, 2, device=world.device)
    all_gather_single(output, mine(everybody, data))
    exactly(output, data)


@pytest.mark.needs("coalesced_deprecated")
@pytest.mark.covers("CD-136", "CD-137", "CD-138", "CD-139", "CD-140")
@REAL_AND_COMPLEX
@pytest.mark.parametrize(
    "shapes", [[(1,)], [(1,), (2, 2)], [(1,), (2, 2), (3, 3, 3)], [(2,), (0,), (3,)]], ids=str
)
def test_all_gather_coalesced(members: Members, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    """Several tensors in one call, each gathered separately, empty ones too."""
    torch.manual_seed(0)
    data = [
        torch.randint(1, 100, (members.size, *shape)).to(dtype).to(members.world.device) for shape in shapes
    ]
    if not members.takes_part:
        return
    slots = [
        [torch.zeros(shape, dtype=dtype, device=members.world.device) for shape in shapes]
        for _ in members.ranks
    ]
    dist.all_gather_coalesced(slots, [mine(members, each) for each in data], group=members.group)
    exactly(slots, [[each[index] for each in data] for index in range(members.size)])


def _exchange_plan(members: Members, *, even: bool) -> tuple[list[int], list[int]]:
    """Rows that this member sends to, and receives from, each other one."""
    if even:
        return [1] * members.size, [1] * members.size
    return [index + 1 for index in range(members.size)], [members.index + 1] * members.size


def _piece(sender: int, receiver: int, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """Says who sent it to whom, row by row."""
    base = torch.arange(rows * 3).reshape(rows, 3) + 1000 * sender + 100 * receiver
    return base.to(dtype) * (1 + 1j if dtype.is_complex else 1)


@pytest.mark.covers(
    "CD-141", "CD-142", "CD-143", "CD-144", "CD-145", "CD-146", "CD-147", "CD-148", "CD-153", "CD-154", "CD-155",
    "CD-156", "CD-159", "CD-160", "CD-161", "CD-162",
)  # fmt: skip
@REAL_AND_COMPLEX
@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
def test_all_to_all_single(members: Members, even: bool, dtype: torch.dtype) -> None:
    """Each member sends a different piece to each other one; pieces of one size, or sizes that differ by receiver."""
    if not members.takes_part:
        return
    me, device = members.index, members.world.device
    sends, receives = _exchange_plan(members, even=even)
    source = torch.cat([_piece(me, other, rows, dtype) for other, rows in enumerate(sends)]).to(device)
    output = torch.zeros(sum(receives), 3, dtype=dtype, device=device)
    splits = {} if even else {"output_split_sizes": receives, "input_split_sizes": sends}
    dist.all_to_all_single(output, source, group=members.group, **splits)
    exactly(output.cpu(), torch.cat([_piece(other, me, rows, dtype) for other, rows in enumerate(receives)]))


@pytest.mark.covers("CD-149", "CD-150", "CD-151", "CD-152", "CD-157", "CD-158", "CD-163", "CD-164")
@REAL_AND_COMPLEX
def test_all_to_all(members: Members, dtype: torch.dtype) -> None:
    """The same with lists of tensors."""
    if not members.takes_part:
        return
    me, device = members.index, members.world.device
    source = [_piece(me, other, 2, dtype).to(device) for other in range(members.size)]
    output = [torch.zeros(2, 3, dtype=dtype, device=device) for _ in members.ranks]
    dist.all_to_all(output, source, group=members.group)
    exactly([each.cpu() for each in output], [_piece(other, me, 2, dtype) for other in range(members.size)])


@pytest.mark.needs("uneven_all_to_all_list")
@pytest.mark.covers("CD-150", "CD-152", "CD-158", "CD-164")
@REAL_AND_COMPLEX
def test_all_to_all_uneven(members: Members, dtype: torch.dtype) -> None:
    """Lists of tensors whose sizes differ by receiver."""
    if not members.takes_part:
        return
    me, device = members.index, members.world.device
    sends, receives = _exchange_plan(members, even=False)
    source = [_piece(me, other, rows, dtype).to(device) for other, rows in enumerate(sends)]
    output = [torch.zeros(rows, 3, dtype=dtype, device=device) for rows in receives]
    dist.all_to_all(output, source, group=members.group)
    exactly(
        [each.cpu() for each in output],
        [_piece(other, me, rows, dtype) for other, rows in enumerate(receives)],
    )


@pytest.mark.covers("CD-127")
def test_inputs_are_left_alone(world: World) -> None:
    """Gathering and exchanging do not change the sent tensors."""
    everybody = all_of(world)
    data = contributions(everybody, world.size, 2)
    sent = mine(everybody, data)
    dist.all_gather([torch.zeros_like(sent) for _ in data], sent)
    dist.all_to_all_single(torch.zeros_like(sent), sent)
    exactly(sent, data[world.rank])


@pytest.mark.covers("CD-127")
def test_everybody_sees_the_same(world: World) -> None:
    """All ranks hold the same slots, compared without a collective."""
    everybody = all_of(world)
    slots = [torch.zeros(4, device=world.device) for _ in range(world.size)]
    dist.all_gather(slots, mine(everybody, contributions(everybody, 4)))
    assert_same_everywhere(world, slots)
