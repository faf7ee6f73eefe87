"""The first minute on a new machine: can ranks meet, talk and compute?"""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from disttest.testing.world import World

from ..ranks import exchange, fresh_name, store

pytestmark = pytest.mark.world_size()


def test_rendezvous(world: World) -> None:
    """Every rank knows its number and the size, and is a separate process."""
    assert (dist.get_rank(), dist.get_world_size()) == (world.rank, world.size)
    seen = exchange(world, (world.rank, os.environ["GROUP_RANK"], os.getpid()))
    assert [rank for rank, _, _ in seen] == list(range(world.size))
    assert len({(node, pid) for _, node, pid in seen}) == world.size


def test_environment(world: World) -> None:
    """The environment says what torchrun would say, on one node and on several."""
    rank, local_rank, node = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "GROUP_RANK"))
    size, local_size, nodes = (
        int(os.environ[name]) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    )
    assert rank == node * local_size + local_rank == world.rank
    assert size == nodes * local_size == world.size
    assert local_rank == world.local_rank


def test_device_computes(world: World) -> None:
    """The rank's device multiplies two matrices as the CPU does."""
    left, right = torch.randn(32, 32), torch.randn(32, 32)
    result = (left.to(world.device) @ right.to(world.device)).cpu()
    # Not assert_close: its first call imports sympy, which would cost more than the rest of this suite.
    assert torch.allclose(result, left @ right, rtol=1e-2, atol=1e-2), (result - left @ right).abs().max()


def test_all_reduce(world: World) -> None:
    """The sum over ranks arrives on every rank."""
    tensor = torch.full((8,), float(world.rank + 1), device=world.device)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world.size * (world.size + 1) / 2] * 8


def test_barrier_waits_for_the_last(world: World) -> None:
    """No rank leaves a barrier that the last rank has not entered."""
    last = world.size - 1
    here, name = store(), fresh_name("barrier")
    if world.rank == last:
        here.wait([f"{name}/entering/{rank}" for rank in range(last)])
        if last:
            time.sleep(0.05)  # a barrier that lets go would be noticed now; a sound one never is
        assert not any(here.check([f"{name}/left/{rank}"]) for rank in range(last))
        dist.barrier()
        return
    here.set(f"{name}/entering/{world.rank}", "1")
    dist.barrier()
    here.set(f"{name}/left/{world.rank}", "1")


def test_broadcast_objects(world: World) -> None:
    """Python objects of the last rank arrive everywhere."""
    source = world.size - 1
    objects = [{"from": source}, ("pair", 2)] if world.rank == source else [None, None]
    dist.broadcast_object_list(objects, src=source, device=world.device)
    assert objects == [{"from": source}, ("pair", 2)]


@pytest.mark.world_size(min=2)
@pytest.mark.needs("messages")
def test_ring(world: World) -> None:
    """Each rank sends to the next and receives from the one before."""
    received = torch.empty(4, device=world.device)
    sent = torch.full((4,), float(world.rank), device=world.device)
    following, previous = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    requests = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, sent, following), dist.P2POp(dist.irecv, received, previous)]
    )
    for request in requests:
        request.wait()
    assert received.tolist() == [float(previous)] * 4
