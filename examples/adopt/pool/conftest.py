"""A pool of ranks for the whole session, made before the first test."""

import multiprocessing
import tempfile

import pytest
import torch.distributed as dist

RANKS = 2


def join_group(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)


def pytest_sessionstart(session):
    session.config.pool = multiprocessing.get_context("fork").Pool(RANKS)
    file = f"{tempfile.mkdtemp()}/store"
    session.config.pool.starmap(join_group, [(rank, file) for rank in range(RANKS)], chunksize=1)


def pytest_sessionfinish(session):
    session.config.pool.terminate()


@pytest.fixture
def pool(request):
    return request.config.pool
