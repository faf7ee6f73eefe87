"""Tests that start their ranks with ``torch.multiprocessing.spawn``; the last three fail, crash and hang."""

import signal
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def in_group(rank, file, work):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    work(rank)
    dist.destroy_process_group()


def add(_):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total == 2


def fail(rank):
    assert rank == 0, "rank 1 is wrong"


def crash(rank):
    if rank == 1:
        signal.raise_signal(signal.SIGSEGV)
    dist.barrier()


def hang(_):
    time.sleep(600)


@pytest.mark.parametrize("work", [add, fail, crash], ids=["adds", "fails", "crashes"])
def test_spawned(tmp_path, work):
    mp.spawn(in_group, args=(tmp_path / "store", work), nprocs=2)


@pytest.mark.timeout(3)
def test_hangs(tmp_path):
    mp.spawn(in_group, args=(tmp_path / "store", hang), nprocs=2)
