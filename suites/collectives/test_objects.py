"""Object collectives: whatever can be pickled arrives equal, and what cannot is an error."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.distributed as dist

from disttest.testing.world import World

from .data import Members

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]


class Thing:
    """An object with a tensor inside, equal when its attributes are."""

    def __init__(self, x: object) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Thing):
            return NotImplemented
        if isinstance(self.x, torch.Tensor):
            return torch.equal(self.x, other.x)
        return self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


def _objects() -> list[object]:
    """Objects of every kind and of different lengths; the same on all ranks, which are seeded alike."""
    named = Thing(10)
    named.bar = 1
    return [
        {"key1": 3, "key2": 4, "key3": {"nested": True}},
        named,
        Thing(torch.randn(3, 3)),
        "text" * 1000,
        [1, 2, True, "string", [4, 5, "nested"]],
        None,
    ]


def _of_rank(index: int) -> object:
    torch.manual_seed(0)
    objects = _objects()
    return objects[index % len(objects)]


@pytest.mark.covers("CD-171", "CD-172")
def test_all_gather_object(members: Members, debug_level: str) -> None:
    """Every member gets everybody's object, at its place."""
    if not members.takes_part:
        return
    slots: list[object] = [None] * members.size
    dist.all_gather_object(slots, _of_rank(members.index), group=members.group)
    assert slots == [_of_rank(index) for index in range(members.size)]


@pytest.mark.covers("CD-173", "CD-174")
def test_gather_object(members: Members, debug_level: str) -> None:
    """Each member in turn is the destination and gets the list; the other members need no list."""
    if not members.takes_part:
        return
    for destination in members.ranks:
        slots = [None] * members.size if destination == members.world.rank else None
        dist.gather_object(_of_rank(members.index), slots, dst=destination, group=members.group)
        if slots is not None:
            assert slots == [_of_rank(index) for index in range(members.size)]


@pytest.mark.covers("CD-173")
def test_unpicklable_object(world: World) -> None:
    """An object that cannot be pickled is an error on the rank that has it, before anything travels."""

    class Local:
        pass

    with pytest.raises((AttributeError, pickle.PicklingError)):
        dist.all_gather_object([None] * world.size, Local())


@pytest.mark.covers("CD-175")
@pytest.mark.parametrize("with_device", [False, True], ids=["default", "device"])
def test_broadcast_object_list(members: Members, with_device: bool) -> None:
    """From each source in turn, its whole list arrives everywhere, in order."""
    if not members.takes_part:
        return
    options = {"device": members.world.device} if with_device else {}
    for source in members.ranks:
        torch.manual_seed(0)
        sent = [source, *_objects()]
        objects = list(sent) if source == members.world.rank else [None] * len(sent)
        dist.broadcast_object_list(objects, src=source, group=members.group, **options)
        assert objects == sent


@pytest.mark.covers("CD-176")
def test_scatter_object_list(members: Members) -> None:
    """From each source in turn, member k gets object k of its list."""
    if not members.takes_part:
        return
    for source in members.ranks:
        give = [(source, index, _of_rank(index)) for index in range(members.size)]
        slot: list[object] = [None]
        dist.scatter_object_list(
            slot, give if source == members.world.rank else None, src=source, group=members.group
        )
        assert slot == [give[members.index]]


@pytest.mark.covers("CD-176")
def test_scatter_object_list_needs_a_slot(world: World) -> None:
    """An empty output list is an error."""
    with pytest.raises(ValueError, match="scatter_object_output_list to be a list of size at least 1"):
        dist.scatter_object_list([], [0] * world.size, src=0)


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-173")
def test_send_object_list(world: World) -> None:
    """A list of objects can be sent to one rank."""
    if world.rank == 1:
        dist.send_object_list([{"a": 1}, "two"], dst=0)
    if world.rank == 0:
        got: list[object] = [None, None]
        assert dist.recv_object_list(got, src=1) == 1
        assert got == [{"a": 1}, "two"]


@pytest.mark.covers("CD-171")
def test_large_objects(world: World) -> None:
    """Objects of a megabyte and of a few bytes travel in one call."""
    sent = list(range(100_000)) if world.rank == world.size - 1 else world.rank
    slots: list[object] = [None] * world.size
    dist.all_gather_object(slots, sent)
    assert slots == [*range(world.size - 1), list(range(100_000))]
