"""Tests of classes that start their ranks themselves (see harness.py); the last ones fail, crash and hang."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from classes.harness import DistributedTest


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


class TestGood(DistributedTest):
    reuse_dist_env = True

    def test_sum_of(self, dtype):
        total = torch.ones(4, dtype=getattr(torch, dtype))
        dist.all_reduce(total)
        assert total.tolist() == [self.world_size] * 4


class TestBad(DistributedTest):
    def test_fails(self):
        assert dist.get_rank() == 0, "rank 1 is wrong"

    @pytest.mark.timeout(20)
    def test_crashes_and_hangs(self):
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        dist.barrier()

    @pytest.mark.timeout(20)
    def test_hangs(self):
        time.sleep(600)
