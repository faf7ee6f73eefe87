"""One test for each way to hang; what disttest says of each is checked by tests/integration/test_findings.py."""

import time

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.timeout(2)
two = pytest.mark.world_size(2)


@two
def test_missing(world):
    dist.all_reduce(torch.ones(1))
    if world.rank == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(1))


@two
def test_operations_differ(world):
    if world.rank == 0:
        dist.broadcast(torch.ones(4), 1)
    else:
        dist.all_reduce(torch.ones(4))
        dist.barrier()


def broadcast_from_a_sleeper(world, tensor):
    """Two ranks wait for the third, with tensors that could never have fitted."""
    if world.rank == 2:
        time.sleep(600)
    dist.broadcast(tensor, 2)


@pytest.mark.world_size(3)
def test_shapes_differ(world):
    broadcast_from_a_sleeper(world, torch.ones(4 + world.rank))


@pytest.mark.world_size(3)
def test_dtypes_differ(world):
    broadcast_from_a_sleeper(world, torch.ones(4, dtype=(torch.float32, torch.float64)[world.rank % 2]))


@two
def test_shapes_differ_and_gloo_aborts(world):
    dist.all_reduce(torch.ones(4 + 60_000 * world.rank))


@two
def test_groups_differ(world):
    first, second = (dist.new_group([0, 1], group_desc=name) for name in ("first", "second"))
    dist.all_reduce(torch.ones(4), group=first if world.rank == 0 else second)


@two
def test_groups_in_opposite_order(world):
    first, second = (dist.new_group([0, 1], group_desc=name) for name in ("first", "second"))
    order = (first, second) if world.rank == 0 else (second, first)
    for group in order:
        dist.barrier(group=group)


@two
def test_point_to_point(world):
    dist.recv(torch.ones(1), 1 - world.rank)


@two
def test_slow(world):
    dist.barrier()
    if world.rank == 1:
        while True:
            sum(range(1000))


@pytest.fixture
def hanging_teardown(world):
    yield
    if world.rank == 0:
        time.sleep(600)


@two
def test_teardown(world, hanging_teardown):
    dist.barrier()


@pytest.fixture
def barrier_at_teardown(world):
    yield
    if world.rank == 0:
        dist.barrier()


@two
def test_barrier_at_teardown(world, barrier_at_teardown):
    dist.barrier()


@two
def test_everybody_is_fine(world):
    dist.barrier()
