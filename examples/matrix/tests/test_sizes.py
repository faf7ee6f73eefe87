"""The same test at two world sizes, which a plan may put on different runners."""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.world_size(1, 2)
def test_sum(world):
    x = torch.full((8,), float(world.rank + 1), device=world.device)
    dist.all_reduce(x)
    assert x[0] == sum(range(1, world.size + 1))
