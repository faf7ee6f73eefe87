"""Processes and groups: membership, and the effects of making and destroying groups."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from disttest.testing.world import World

from ..ranks import exchange, meet, raised_by, subgroup

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]


def _some(world: World) -> list[int]:
    """Ranks 1 and 2, or rank 1 alone: numbers in the group differ from those in the world."""
    return [1, 2] if world.size > 2 else [1]


@pytest.mark.covers("CD-002")
def test_every_rank_is_a_process(world: World, world_tmp_path) -> None:
    """As many processes as ranks, each with a different number."""
    # Processes of two nodes may have one number.
    process = f"{os.environ['GROUP_RANK']}-{os.getpid()}"
    (world_tmp_path / process).write_text(str(dist.get_rank()))
    meet(world)
    found = {path.name: int(path.read_text()) for path in world_tmp_path.iterdir()}
    assert sorted(found.values()) == list(range(world.size))
    assert found[process] == world.rank


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-003", "CD-006")
def test_member_and_stranger(world: World) -> None:
    """Members of a group see its size and their number in it; strangers see -1, and an error when they ask for its backend."""
    some = _some(world)
    with subgroup(some) as group:
        if world.rank in some:
            assert dist.get_backend(group) == world.backend
            assert (dist.get_world_size(group), dist.get_rank(group)) == (len(some), some.index(world.rank))
            assert dist.get_process_group_ranks(group) == some
            assert [dist.get_global_rank(group, index) for index in range(len(some))] == some
            assert [dist.get_group_rank(group, rank) for rank in some] == list(range(len(some)))
            return
        assert (dist.get_world_size(group), dist.get_rank(group)) == (-1, -1)
        with pytest.raises(ValueError, match="Invalid process group specified"):
            dist.get_backend(group)


@pytest.mark.covers("CD-003", "CD-008")
def test_full_group(world: World) -> None:
    """A group of all ranks has the world's size and numbers."""
    with subgroup(list(range(world.size))) as group:
        assert (dist.get_world_size(group), dist.get_rank(group)) == (world.size, world.rank)
    assert dist.get_backend() == world.backend
    assert (dist.get_world_size(), dist.get_rank()) == (world.size, world.rank)


@pytest.mark.covers("CD-005", "CD-007")
@pytest.mark.parametrize("full", [True, False], ids=["full", "part"])
def test_destroyed_group_is_gone(world: World, full: bool) -> None:
    """A destroyed group is known no more, and the world goes on."""
    if not full and world.size == 1:
        pytest.skip("a group without rank 0 needs a second rank")
    ranks = list(range(world.size)) if full else _some(world)
    group = dist.new_group(ranks)
    meet(world)
    if world.rank in ranks:
        dist.destroy_process_group(group)
        assert raised_by(dist.get_process_group_ranks, group) is not None
    tensor = torch.ones(1, device=world.device)
    dist.all_reduce(tensor)
    assert tensor.item() == world.size


@pytest.mark.covers("CD-005")
def test_many_groups(world: World) -> None:
    """Groups made one after another keep apart: each one sums its own members."""
    groups = {rank: dist.new_group(list(range(rank + 1))) for rank in range(world.size)}
    for last, group in groups.items():
        tensor = torch.tensor([float(world.rank + 1)], device=world.device)
        if world.rank <= last:
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == (last + 1) * (last + 2) / 2
    for last, group in groups.items():
        if world.rank <= last:
            dist.destroy_process_group(group)


@pytest.mark.covers("CD-004")
@pytest.mark.parametrize("name", ["gloo", "GLOO", "Nccl", "mpi", "UCC"])
def test_backend_name(name: str) -> None:
    """Backend names are lower case whatever way they are written."""
    assert dist.Backend(name) == name.lower()


@pytest.mark.covers("CD-004")
@pytest.mark.parametrize("wrong", [None, 3, ["gloo"]], ids=str)
def test_backend_name_is_a_string(wrong: object) -> None:
    """Anything but a string is an error."""
    with pytest.raises(ValueError, match="Backend"):
        dist.Backend(wrong)


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-020")
def test_new_subgroups(world: World) -> None:
    """``new_subgroups(k)`` cuts the world into groups of k consecutive ranks; each rank gets its own and the list."""
    size = next(k for k in range(2, world.size + 1) if world.size % k == 0)
    own, every = dist.new_subgroups(group_size=size)
    start = world.rank // size * size
    assert dist.get_process_group_ranks(own) == list(range(start, start + size))
    assert len(every) == world.size // size
    assert own in every


@pytest.mark.world_size(4, 8)
@pytest.mark.covers("CD-021")
def test_new_subgroups_of_a_group(world: World) -> None:
    """A group can be cut up itself."""
    halves = [list(range(0, world.size, 2)), list(range(1, world.size, 2))]
    half, _ = dist.new_subgroups_by_enumeration(halves)
    own, every = dist.new_subgroups(group_size=1, group=half)
    assert dist.get_process_group_ranks(own) == [world.rank]
    assert len(every) == world.size // 2


@pytest.mark.covers("CD-022")
def test_subgroup_larger_than_the_world(world: World) -> None:
    """A size above the world's is an error."""
    with pytest.raises(ValueError, match="must not exceed"):
        dist.new_subgroups(group_size=100)


@pytest.mark.world_size(min=3)
@pytest.mark.covers("CD-023")
def test_subgroup_size_must_divide(world: World) -> None:
    """A size that does not divide the world's is an error."""
    with pytest.raises(ValueError, match="must be divisible by"):
        dist.new_subgroups(group_size=world.size - 1)


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-024")
def test_subgroups_by_enumeration(world: World) -> None:
    """Groups as they are listed; a reduction in one does not reach the other."""
    lists = [list(range(0, world.size, 2)), list(range(1, world.size, 2))]
    own, every = dist.new_subgroups_by_enumeration(lists)
    members = lists[world.rank % 2]
    assert dist.get_process_group_ranks(own) == members
    assert len(every) == 2
    tensor = torch.tensor([float(world.rank)], device=world.device)
    dist.all_reduce(tensor, group=own)
    assert tensor.item() == sum(members)


@pytest.mark.covers("CD-025", "CD-026")
@pytest.mark.parametrize("wrong", ["too-large", "negative"])
def test_enumerated_rank_out_of_range(world: World, wrong: str) -> None:
    """A rank that does not exist is an error that names it."""
    rank = world.size if wrong == "too-large" else -1
    with pytest.raises(ValueError, match=rf"Rank {rank} is out of range"):
        dist.new_subgroups_by_enumeration([[rank]])


@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-027")
def test_enumerated_groups_do_not_overlap(world: World) -> None:
    """A rank in two lists is an error that names it."""
    with pytest.raises(ValueError, match="Rank 1 has appeared in both subgroup"):
        dist.new_subgroups_by_enumeration([[0, 1], [1]])


@pytest.mark.world_size(2, 4, 8)
@pytest.mark.covers("CD-020")
def test_device_mesh(world: World) -> None:
    """Rows and columns of a mesh are groups; sums over a row and over a column are those ranks' own."""
    rows, columns = 2, world.size // 2
    mesh = init_device_mesh(world.device.type, (rows, columns), mesh_dim_names=("row", "column"))
    row, column = divmod(world.rank, columns)
    assert list(mesh.get_coordinate()) == [row, column]
    expected = {
        "column": [row * columns + c for c in range(columns)],
        "row": [r * columns + column for r in range(rows)],
    }
    for name, ranks in expected.items():
        group = mesh.get_group(name)
        assert dist.get_process_group_ranks(group) == ranks
        tensor = torch.tensor([float(world.rank)], device=world.device)
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == sum(ranks)


@pytest.mark.covers("CD-004")
def test_unknown_backend(world: World) -> None:
    """A group on a backend that does not exist is an error on every rank."""
    with pytest.raises((ValueError, RuntimeError, AssertionError), match=r"(?i)backend"):
        dist.new_group(backend="carrier_pigeon")
    assert len(exchange(world, None)) == world.size
