"""A test that imports more than the released image has."""

import pytest
import torch
import torch.distributed as dist
from einops import rearrange


@pytest.mark.world_size(2)
def test_shards_of_heads_add_up(world):
    x = rearrange(torch.arange(8.0, device=world.device), "(heads dim) -> heads dim", heads=2)[
        world.rank
    ].sum()
    dist.all_reduce(x)
    assert x == sum(range(8))
