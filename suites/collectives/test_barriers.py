"""Barriers: no member leaves before the last one arrives, and a missing member is named."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from disttest.testing.world import World

from ..ranks import exchange, fresh_name, meet, raised_by, store, subgroup
from .data import Members, assert_completed

pytestmark = [pytest.mark.world_size(), pytest.mark.usefixtures("leave_together")]

SHORT = timedelta(milliseconds=200)
LATE = r"Timed out|timeout|timed out|closed"


@pytest.mark.covers("CD-165", "CD-166", "CD-167", "CD-168", "CD-169", "CD-170")
def test_nobody_leaves_early(members: Members) -> None:
    """Each member in turn arrives last; until then no member has left."""
    name = fresh_name("barrier")
    if not members.takes_part:
        return
    here, me = store(), members.world.rank
    for last in members.ranks:
        others = [rank for rank in members.ranks if rank != last]
        if me != last:
            here.set(f"{name}/{last}/coming/{me}", "1")
            dist.barrier(group=members.group)
            here.set(f"{name}/{last}/left/{me}", "1")
            continue
        here.wait([f"{name}/{last}/coming/{rank}" for rank in others])
        time.sleep(0.02)  # a barrier that lets go would be noticed now; a sound one never is
        assert not [rank for rank in others if here.check([f"{name}/{last}/left/{rank}"])]
        dist.barrier(group=members.group)


@pytest.mark.covers("CD-168")
def test_async_barrier(world: World) -> None:
    """The handle of an asynchronous barrier completes when all have come."""
    work = dist.barrier(async_op=True)
    work.wait()
    assert_completed(world, work)


@pytest.mark.world_size(min=2)
@pytest.mark.needs("group_timeout")
@pytest.mark.covers("CD-009", "CD-010", "CD-011")
@pytest.mark.parametrize("part", [False, True], ids=["full", "part"])
def test_barrier_times_out(world: World, part: bool) -> None:
    """One member alone waits for as long as its group says, not less, and then raises."""
    ranks = [0, 1] if part else list(range(world.size))
    with subgroup(ranks, timeout=SHORT) as group:
        if world.is_first:
            started_s = time.monotonic()
            with pytest.raises(RuntimeError, match=LATE):
                dist.barrier(group=group)
            assert time.monotonic() - started_s >= SHORT.total_seconds() - 0.1
        meet(world)


@pytest.mark.world_size(min=2)
@pytest.mark.needs("group_timeout")
@pytest.mark.covers("CD-012")
def test_barrier_with_its_own_limit(world: World) -> None:
    """``barrier(timeout=…)`` overrides the limit of its group."""
    import inspect

    if "timeout" not in inspect.signature(dist.barrier).parameters:
        pytest.skip(f"barrier of torch {torch.__version__} takes no timeout")
    with subgroup(list(range(world.size)), timeout=timedelta(seconds=300)) as group:
        if world.is_first:
            with pytest.raises(RuntimeError, match=r"Timed out waiting 50ms"):
                dist.barrier(group=group, timeout=timedelta(milliseconds=50))
        meet(world)


@pytest.mark.world_size(min=2)
@pytest.mark.needs("group_timeout")
@pytest.mark.covers("CD-009")
@pytest.mark.parametrize("call", ["all_reduce", "broadcast", "recv", "all_gather"])
def test_collective_times_out(world: World, call: str) -> None:
    """A rank that waits for others that never come raises after its group's limit."""
    tensor = torch.ones(2, device=world.device)
    calls = {
        "all_reduce": lambda group: dist.all_reduce(tensor, group=group),
        "broadcast": lambda group: dist.broadcast(tensor, src=1, group=group),
        "recv": lambda group: dist.recv(tensor, src=1, group=group),
        "all_gather": lambda group: dist.all_gather(
            [tensor.clone() for _ in range(world.size)], tensor, group=group
        ),
    }
    with subgroup(list(range(world.size)), timeout=SHORT) as group:
        if world.is_first:
            with pytest.raises(RuntimeError, match=LATE):
                calls[call](group)
        meet(world)


@pytest.mark.needs("monitored_barrier")
@pytest.mark.covers("CD-013")
@pytest.mark.parametrize("wait_all", [False, True], ids=["first", "all"])
def test_monitored_barrier_passes(world: World, wait_all: bool) -> None:
    """With everybody there it passes, in between other collectives too."""
    for _ in range(3):
        tensor = torch.ones(4, device=world.device)
        dist.all_reduce(tensor)
        dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=wait_all)
        assert tensor[0].item() == world.size


@pytest.mark.world_size(min=2)
@pytest.mark.needs("monitored_barrier")
@pytest.mark.covers("CD-013", "CD-014", "CD-018")
def test_monitored_barrier_names_the_missing(world: World) -> None:
    """The last rank stays away: rank 0 names it; the others say that rank 0 went wrong."""
    missing = world.size - 1
    with subgroup(list(range(world.size))) as group:
        error = None
        if world.rank != missing:
            error = raised_by(dist.monitored_barrier, group, timeout=SHORT * 2)
        texts = exchange(world, str(error))
    assert f"Rank {missing} failed to pass monitoredBarrier" in texts[0]
    for rank in range(1, missing):
        assert (
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting"
            in texts[rank]
        )
        assert "from rank 0" in texts[rank]


@pytest.mark.world_size(min=3)
@pytest.mark.needs("monitored_barrier")
@pytest.mark.covers("CD-018")
def test_monitored_barrier_names_the_lowest(world: World) -> None:
    """Only ranks 0 and 1 come: rank 0 names rank 2, the lowest that is missing."""
    with subgroup(list(range(world.size))) as group:
        error = raised_by(dist.monitored_barrier, group, timeout=SHORT * 2) if world.rank < 2 else None
        texts = exchange(world, str(error))
    assert "Rank 2 failed to pass" in texts[0]
    assert "while waiting for send/recv from rank 0" in texts[1]


@pytest.mark.world_size(min=2)
@pytest.mark.needs("monitored_barrier")
@pytest.mark.covers("CD-019")
def test_monitored_barrier_names_all(world: World) -> None:
    """With ``wait_all_ranks`` rank 0, which came alone, lists all others."""
    with subgroup(list(range(world.size))) as group:
        error = None
        if world.is_first:
            error = raised_by(dist.monitored_barrier, group, timeout=SHORT, wait_all_ranks=True)
            missing = ", ".join(map(str, range(1, world.size)))
            assert f"Ranks {missing} failed to pass monitoredBarrier" in str(error)
        meet(world)


@pytest.mark.world_size(min=2)
@pytest.mark.needs("monitored_barrier")
@pytest.mark.covers("CD-017")
def test_monitored_barrier_without_time(world: World) -> None:
    """A limit of zero: rank 0 alone times out, and says that it was itself."""
    with subgroup(list(range(world.size))) as group:
        if world.is_first:
            with pytest.raises(RuntimeError, match="Rank 0 timed out in monitoredBarrier"):
                dist.monitored_barrier(group, timeout=timedelta(0))
        meet(world)


@pytest.mark.world_size(min=3)
@pytest.mark.needs("monitored_barrier")
@pytest.mark.covers("CD-014")
def test_monitored_barrier_of_strangers(world: World) -> None:
    """For ranks outside the group the call does nothing."""
    with subgroup([0, 1]) as group:
        if world.rank >= 2:
            dist.monitored_barrier(group, timeout=SHORT)
            return
        dist.monitored_barrier(group, timeout=timedelta(seconds=20))


@pytest.mark.backend("nccl")
@pytest.mark.world_size(min=2)
@pytest.mark.covers("CD-015", "CD-016")
@pytest.mark.parametrize("wait_all", [False, True], ids=["first", "all"])
def test_monitored_barrier_finds_who_hangs(world: World, wait_all: bool) -> None:
    """Ranks that hang in an NCCL collective are named by rank 0's monitored barrier on a gloo group."""
    gloo = dist.new_group(backend="gloo")
    tensor = torch.ones(1, device=world.device)
    if not world.is_first:
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        return
    with pytest.raises(RuntimeError, match=r"Ranks? 1.* failed to pass monitoredBarrier"):
        dist.monitored_barrier(gloo, timeout=SHORT, wait_all_ranks=wait_all)
    dist.all_reduce(tensor)
    assert tensor.item() == world.size
