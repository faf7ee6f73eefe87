"""Tests that fail in every run: never flaky."""

import os

import pytest
import torch
import torch.distributed as dist


def test_plain():
    assert [1, 2] == [2, 1]


@pytest.mark.world_size(2)
def test_of_one_rank(world):
    assert world.rank == 0


@pytest.mark.world_size(2)
def test_of_numbers(world):
    total = torch.ones(2)
    dist.all_reduce(total)
    assert total.sum() == 3


def test_of_set_up(no_such_fixture):
    pass


@pytest.mark.world_size(2)
def test_of_a_crash(world):
    if world.rank == 1:
        os._exit(3)
