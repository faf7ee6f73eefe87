"""Tests that need memory or threads."""

import mmap

import pytest
import torch

MUCH = 3 << 30


def test_allocation():
    assert torch.empty(MUCH, dtype=torch.uint8).numel() == MUCH


@pytest.mark.world_size(2)
def test_allocation_in_ranks(world):
    assert torch.empty(MUCH, dtype=torch.uint8).numel() == MUCH


def test_mapping():
    with mmap.mmap(-1, MUCH, flags=mmap.MAP_PRIVATE) as memory:
        assert len(memory) == MUCH


def test_threads():
    assert torch.get_num_threads() > 1


@pytest.mark.world_size(1)
def test_threads_of_a_rank(world):
    assert torch.get_num_threads() > 1
