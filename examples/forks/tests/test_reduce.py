"""Two ranks add up what they have."""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.world_size(2)
def test_sum(world):
    x = torch.full((8,), float(world.rank), device=world.device)
    dist.all_reduce(x)
    assert x[0] == 1
