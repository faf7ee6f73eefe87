"""The workers of pytest-xdist are the ranks: ``WORLD_SIZE=2 MASTER_PORT=29511 pytest --dist each --tx 2*popen``."""

import os

import pytest
import torch.distributed as dist


@pytest.fixture(scope="session")
def rank(worker_id):
    return int(worker_id.removeprefix("gw"))


@pytest.fixture(scope="session", autouse=True)
def group(rank):
    os.environ.update(RANK=str(rank), MASTER_ADDR="127.0.0.1")
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()
