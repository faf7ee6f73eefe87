"""Tests that assume that all ranks arrive at about the same time."""

import time

import pytest
import torch
import torch.distributed as dist

LIMIT_S = 0.15


def took(calls: int) -> float:
    began = time.monotonic()
    for _ in range(calls):
        dist.barrier()
    return time.monotonic() - began


@pytest.mark.world_size(2)
def test_barriers(world):
    assert took(4) < 2 * LIMIT_S


@pytest.mark.world_size(2)
def test_reduction(world):
    began = time.monotonic()
    for _ in range(4):
        dist.all_reduce(torch.ones(4))
    assert time.monotonic() - began < 2 * LIMIT_S


@pytest.mark.world_size(2)
def test_message_without_a_wait(world, tmp_path_factory):
    store = dist.distributed_c10d._get_default_store()
    if world.rank == 0:
        dist.barrier()
        store.set("ready", "1")
    else:
        dist.barrier()
        time.sleep(LIMIT_S)
        assert store.check(["ready"])


@pytest.mark.world_size(2)
def test_poll(world):
    work = dist.all_reduce(torch.ones(4), async_op=True)
    end = time.monotonic() + LIMIT_S
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.01)
    done = work.is_completed()
    work.wait()
    assert done


@pytest.mark.world_size(2)
def test_clock(world):
    dist.barrier()
    mine = torch.tensor([time.monotonic()], dtype=torch.float64)
    others = [torch.zeros(1, dtype=torch.float64) for _ in range(world.size)]
    for _ in range(3):
        dist.all_gather(others, mine)
    assert time.monotonic() - min(others).item() < 2 * LIMIT_S
