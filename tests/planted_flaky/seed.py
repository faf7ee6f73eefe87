"""Tests whose outcome is a function of their seed."""

import random

import pytest
import torch
import torch.distributed as dist


@pytest.mark.world_size(2)
def test_python(world):
    assert random.random() > 0.4


@pytest.mark.world_size(2)
def test_torch(world):
    assert torch.rand(()).item() > 0.3


@pytest.mark.world_size(2)
def test_noise(world):
    assert torch.randn(100).abs().max() < 2.6


@pytest.mark.world_size(2)
def test_shuffle(world):
    order = list(range(3))
    random.shuffle(order)
    assert order != sorted(order)


@pytest.mark.world_size(2)
def test_reduced(world):
    total = torch.randn(8)
    dist.all_reduce(total)
    assert total.sum() > -4
