"""Tests that every rank runs; the last three show what is said of a failure, a crash and a hang."""

import os
import signal

import pytest
import torch
import torch.distributed as dist

SIZE = int(os.environ["WORLD_SIZE"])


@pytest.mark.skipif(SIZE < 2, reason="needs ranks to reduce over")
def test_sum():
    total = torch.ones(4)
    dist.all_reduce(total)
    assert total.tolist() == [SIZE] * 4


def test_written_by_rank_0(tmp_path):
    if dist.get_rank() > 0:
        pytest.skip("rank 0 writes")
    (tmp_path / "checkpoint").write_text("weights")


@pytest.mark.timeout(10)
def test_hangs():
    if dist.get_rank() == 0:
        dist.barrier()


def test_crashes():
    if dist.get_rank() == 1:
        signal.raise_signal(signal.SIGSEGV)
    dist.barrier()


def test_fails():
    assert dist.get_rank() == 0
