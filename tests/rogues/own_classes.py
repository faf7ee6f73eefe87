"""Test classes on our own bases, under the field's names."""

import os
import sys
import threading
import time
import unittest

import torch
import torch.distributed as dist
import torch.distributed.rpc

from disttest.testing import (
    DistributedTestBase,
    DynamoDistributedMultiProcTestCase,
    DynamoDistributedSingleProcTestCase,
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
    SpawnHelper,
    TensorPipeRpcAgentTestFixture,
    _dynamo_dist_per_rank_init,
    dist_init,
    get_num_owners_and_forks,
    initialize_pg,
    run_subtests,
    skip_if_lt_x_gpu,
    skip_if_small_worldsize,
    spawn_threads_and_init_comms,
    wait_until_pending_futures_and_users_flushed,
    worker_name,
)


class Base(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()


class Ordinary(Base):
    def test_passes(self):
        assert self.rank in (0, 1)
        assert self.is_master == (self.rank == 0)

    def test_same_random_numbers(self):
        dist.init_process_group("gloo", init_method=self.init_method, rank=self.rank, world_size=2)
        mine = torch.rand(1)
        sums = mine.clone()
        dist.all_reduce(sums)
        self.assertEqual(sums, 2 * mine)
        assert os.environ["TORCH_SHOW_CPP_STACKTRACES"] == "1"
        assert self.destroy_pg_upon_exit

    def test_fails(self):
        assert self.rank == 0, "only rank 0 is right"

    def test_skips(self):
        raise unittest.SkipTest("not today")

    @skip_if_lt_x_gpu(64)
    def test_skips_for_64_gpus(self):
        raise AssertionError("not reached")

    @skip_if_small_worldsize
    def test_small(self):
        pass

    def test_exit_3(self):
        if self.rank == 1:
            sys.exit(3)

    def test_os_exit_0(self):
        if self.rank == 1:
            os._exit(0)

    def test_hangs(self):
        time.sleep(1000)

    def test_group(self):
        dist.init_process_group("gloo", init_method=self.init_method, rank=self.rank, world_size=2)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        self.assertEqual(tensor.item(), 2)


class RunNeverReturns(Base):
    @classmethod
    def _run(cls, rank, test_name, file_name, parent_pipe, **kwargs):
        while True:
            time.sleep(0.1)

    def test_it(self):
        pass


class Subtests(DistributedTestBase):
    world_size = 2

    def test_all_are_run(self):
        self.create_pg("cpu")
        run_subtests(self, {"a": [1, 2], "b": [3, 4]}, self._check)

    def test_devices_and_backends(self):
        assert os.environ["WORLD_SIZE"] == "2"
        assert [self.backend(device) for device in ("cuda:0", "hpu", "xpu", "cpu")] == [
            "nccl",
            "hccl",
            "xccl",
            "gloo",
        ]
        assert self.rank_to_device("cpu") == {0: [0], 1: [0]}
        assert self.create_pg("cpu").size() == 2

    def _check(self, a, b):
        if self.rank == 1 and a == 1:
            raise AssertionError(f"a is {a}, b is {b}")


class Continuous(MultiProcContinuousTest):
    world_size = 2
    pids = set()

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_1_fails(self):
        if self.rank == 1:
            raise AssertionError("rank 1 is wrong")
        dist.barrier()

    def test_2_runs(self):
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        self.assertEqual(tensor.item(), 2)
        Continuous.pids.add(os.getpid())

    def test_3_warm(self):
        assert os.getpid() in Continuous.pids
        assert self.pg is dist.group.WORLD
        assert os.environ["LOCAL_RANK"] == str(self.rank)


class Threads(MultiThreadedTestCase):
    world_size = 3
    timeout_s = 3

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def perThreadSetUp(self):
        self.mine = torch.ones(1)

    def test_sum(self):
        dist.all_reduce(self.mine)
        self.assertEqualOnRank(self.mine.item(), 3)

    def test_fails(self):
        if self.rank == 2:
            raise AssertionError("thread 2 is wrong")
        dist.barrier()

    def test_skips(self):
        raise unittest.SkipTest("no threads today")

    def test_hangs(self):
        if self.rank == 1:
            threading.Event().wait()

    def test_exit_4(self):
        if self.rank == 1:
            sys.exit(4)


class ThreadsNotStarted(MultiThreadedTestCase):
    def test_it(self):
        raise AssertionError("never runs")


class Spawned(unittest.TestCase):
    @spawn_threads_and_init_comms(world_size=2)
    def test_sum(self):
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 2

    @spawn_threads_and_init_comms(world_size=2)
    def test_fails(self):
        raise AssertionError("in a thread")


class DynamoSingle(DynamoDistributedSingleProcTestCase):
    def test_group(self):
        assert dist.get_world_size() == 1


class DynamoMulti(DynamoDistributedMultiProcTestCase):
    def test_compiled(self):
        with _dynamo_dist_per_rank_init(self.rank, self.world_size):
            tensor = torch.ones(2)
            dist.all_reduce(tensor)
            assert tensor[0] == self.world_size


class Rpc(TensorPipeRpcAgentTestFixture, SpawnHelper):
    world_size = 2

    @dist_init
    def test_add(self):
        peer = worker_name((self.rank + 1) % self.world_size)
        result = dist.rpc.rpc_sync(peer, torch.add, args=(torch.ones(2), 1))
        assert result[0] == 2

    @dist_init
    def test_references(self):
        initialize_pg(self.file_init_method, self.rank, self.world_size)
        remote = dist.rpc.remote(
            worker_name((self.rank + 1) % self.world_size), torch.add, args=(torch.ones(2), 1)
        )
        self.assertEqual(remote.to_here(), torch.full((2,), 2.0))
        wait_until_pending_futures_and_users_flushed()
        dist.barrier()
        assert get_num_owners_and_forks() == ("1", "1")
        dist.barrier()
