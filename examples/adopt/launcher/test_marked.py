"""Tests of a launcher of the suite's own (see its conftest); the last three fail, crash and hang."""

import signal
import time

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.world_size(2)


def test_sum():
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total == 2


def test_fails():
    assert dist.get_rank() == 0


def test_crashes():
    if dist.get_rank() == 1:
        signal.raise_signal(signal.SIGSEGV)


@pytest.mark.timeout(3)
def test_hangs():
    time.sleep(600)
