"""Tests that use the pool of their conftest. A crash is a hang: what the dead worker was to answer never comes."""

import signal

import pytest
import torch
import torch.distributed as dist


def add(_):
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def fail(number):
    assert number == 0


def crash(_):
    signal.raise_signal(signal.SIGSEGV)


def test_sum(pool):
    assert pool.map(add, range(2), chunksize=1) == [2, 2]


def test_fails(pool):
    pool.map(fail, range(2), chunksize=1)


@pytest.mark.timeout(3)
def test_crashes_and_hangs(pool):
    pool.map(crash, range(2), chunksize=1)
