"""Tests of classes that start their ranks themselves (see harness.py); the last ones fail, crash and hang."""

import signal
import time

import pytest
import torch
import torch.distributed as dist
from classes.harness import DistributedFixture, DistributedTest


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


class _Written(DistributedFixture):
    """Each of its ranks writes a file."""

    world_size = 2

    def run(self, tmp_path):
        (tmp_path / f"{dist.get_rank()}.txt").write_text(f"one of {dist.get_world_size()}")


written = pytest.fixture(_Written())


class TestGood(DistributedTest):
    reuse_dist_env = True

    def test_sum_of(self, dtype):
        total = torch.ones(4, dtype=getattr(torch, dtype))
        dist.all_reduce(total)
        assert total.tolist() == [self.world_size] * 4


class TestSizes(DistributedTest):
    world_size = [1, 2]

    def test_each(self, tmp_path):
        (tmp_path / str(dist.get_world_size())).touch()
        assert dist.get_rank() > 0 or len(list(tmp_path.iterdir())) == dist.get_world_size()

    @pytest.mark.world_size(1)
    def test_marked(self):
        assert dist.get_world_size() == 1

    @pytest.mark.parametrize("world_size", [1])
    def test_told(self, world_size):
        assert dist.get_world_size() == world_size


class TestFixture(DistributedTest):
    world_size = 1

    @pytest.mark.usefixtures("written")
    def test_read(self, tmp_path):
        assert [path.read_text() for path in tmp_path.iterdir()] == ["one of 2"] * 2


class TestBad(DistributedTest):
    @pytest.mark.world_size(1)
    def test_skips(self):
        pytest.skip("not today")

    def test_fails(self):
        assert dist.get_rank() == 0, "rank 1 is wrong"

    @pytest.mark.timeout(20)
    def test_crashes_and_hangs(self):
        if dist.get_rank() == 1:
            signal.raise_signal(signal.SIGSEGV)
        dist.barrier()

    @pytest.mark.timeout(20)
    def test_hangs(self):
        time.sleep(600)
