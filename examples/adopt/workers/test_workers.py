"""Tests that each worker of pytest-xdist runs; the last three show what is said of a failure, a crash and a hang."""

import signal

import pytest
import torch
import torch.distributed as dist


def test_sum(rank):
    total = torch.full((4,), float(rank))
    dist.all_reduce(total)
    assert total.tolist() == [sum(range(dist.get_world_size()))] * 4


def test_fails(rank):
    assert rank == 0


def test_crashes(rank):
    if rank == 1:
        signal.raise_signal(signal.SIGSEGV)
    dist.barrier()


@pytest.mark.timeout(10)
def test_hangs(rank):
    if rank == 0:
        dist.barrier()
