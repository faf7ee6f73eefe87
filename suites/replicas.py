"""Checks of all ranks' values: the same on each, or different on each.

A separate module, so that suites without ``assert_close`` are spared its imports.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from disttest.testing.world import World

from .ranks import exchange, on_cpu


def assert_same_everywhere(world: World, tensors: Any) -> None:
    """Every rank holds exactly the same values as rank 0."""
    first = exchange(world, tensors)[0]
    torch.testing.assert_close(on_cpu(tensors), first, rtol=0, atol=0)


def assert_different_everywhere(world: World, tensor: torch.Tensor) -> None:
    """No two ranks hold the same values: the start that a test of synchronisation needs."""
    seen = exchange(world, tensor)
    for one, other in itertools.combinations(seen, 2):
        assert not torch.equal(one, other), "the ranks were meant to start from different values"
