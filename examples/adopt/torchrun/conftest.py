"""Every rank runs this pytest: ``torchrun --nproc-per-node 2 -m pytest``."""

import pytest
import torch.distributed as dist


@pytest.fixture(scope="session", autouse=True)
def group():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()
