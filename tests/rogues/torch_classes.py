"""Test classes on torch's own bases whose ranks behave in every way that a harness has to tell apart."""

import ctypes
import os
import signal
import sys
import threading
import time
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.testing._internal.common_distributed import (
    DistributedTestBase,
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
    skip_if_lt_x_gpu,
)
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize


class Base(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()


class Crashes(Base):
    """Rank 1 ends badly while rank 0 returns: torch's harness passes all of these."""

    def test_segfault(self):
        if self.rank == 1:
            ctypes.string_at(0)

    def test_sigkill(self):
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def test_os_exit_0(self):
        if self.rank == 1:
            os._exit(0)

    def test_sys_exit_3(self):
        if self.rank == 1:
            sys.exit(3)


class Ordinary(Base):
    def test_passes(self):
        print(f"I am rank {self.rank}")

    def test_fails(self):
        self.assertEqual(self.rank, 0, "only rank 0 is right")

    def test_skips(self):
        raise unittest.SkipTest("not today")

    @skip_if_lt_x_gpu(64)
    def test_skips_by_code(self):
        raise AssertionError("not reached")

    def test_one_rank_skips(self):
        if self.rank == 1:
            raise unittest.SkipTest("not me")

    @unittest.skip("marked")
    def test_marked_skip(self):
        raise AssertionError("not reached")

    @unittest.expectedFailure
    def test_expected_failure(self):
        raise AssertionError("as expected")

    def test_exit_0(self):
        sys.exit(0)

    def test_grandchild_stays(self):
        if os.fork() == 0:
            time.sleep(1000)
            os._exit(0)


class FailsThenSkips(Base):
    def run_test(self, test_name, parent_pipe):
        try:
            getattr(self, test_name)()
        except AssertionError:
            sys.exit(86)

    def test_it(self):
        raise AssertionError("this is a failure")


class Apex(Base):
    """Makes its process group in ``_run``, and leaves by ``sys.exit(0)``."""

    @property
    def init_method(self):
        return f"file://{self.file_name}"

    @classmethod
    def _run(cls, rank, test_name, file_name, pipe):
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        dist.init_process_group("gloo", init_method=self.init_method, rank=rank, world_size=self.world_size)
        self.run_test(test_name, pipe)
        dist.barrier()
        dist.destroy_process_group()
        sys.exit(0)

    @property
    def destroy_pg_upon_exit(self):
        return False

    def test_sum(self):
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((2,), 2.0))


class Codes(Base):
    def setUp(self):
        super().setUp()
        method = getattr(self, self._testMethodName).__wrapped__
        if "any_code" in self._testMethodName:
            self.skip_return_code_checks = [method]
        else:
            self.special_return_code_checks = {method: -signal.SIGABRT}

    def test_abort(self):
        if self.rank == 0:
            os.abort()

    def test_no_abort(self):
        pass

    def test_any_code(self):
        os._exit(17 + self.rank)

    def test_any_code_but_error(self):
        raise AssertionError("an error is an error")


class Hangs(Base):
    def test_hang(self):
        if self.rank == 1:
            time.sleep(1000)

    def test_peer_dies(self):
        if self.rank == 1:
            os._exit(5)
        time.sleep(1000)


class NoRanks(MultiProcessTestCase):
    """Forgets to start its ranks; torch passes it."""

    def test_nothing(self):
        raise AssertionError("never runs")


class NeverWaits(MultiProcessTestCase):
    world_size = 2

    def join_or_run(self, fn):
        return lambda: None

    def test_it(self):
        raise AssertionError("nobody hears this")

    def setUp(self):
        super().setUp()
        self._spawn_processes()


class SizeZero(Base):
    world_size = 0

    def test_it(self):
        raise AssertionError("never runs")


class SizeText(Base):
    world_size = "two"

    def test_it(self):
        raise AssertionError("never runs")


class SizeNumberText(Base):
    world_size = "3"

    def test_it(self):
        assert self.rank in (0, 1, 2)


class BadSetUp(MultiProcessTestCase):
    def setUp(self):
        super().setUp()
        raise ValueError("set-up of the main process")

    def test_it(self):
        pass


class OwnSpawn(MultiProcessTestCase):
    """Starts its ranks by itself, in its own way."""

    world_size = 2

    def _spawn_processes(self):
        context = torch.multiprocessing.get_context("fork")
        self.processes = []
        for rank in range(self.world_size):
            process = context.Process(target=self._own_run, args=(rank,))
            process.start()
            self.processes.append(process)

    @staticmethod
    def _own_run(rank):
        os._exit(0 if rank == 0 else 4)

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_rank_1_leaves_with_4(self):
        pass


class Device(DistributedTestBase):
    world_size = 2

    def test_sum(self):
        dist.init_process_group("gloo", store=dist.FileStore(self.file_name, 2), rank=self.rank, world_size=2)
        tensor = torch.full((3,), float(self.rank))
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.ones(3))


class Parametrized(Base):
    @parametrize("value", [1, 2])
    def test_value(self, value):
        self.assertIn(value, (1, 2))


instantiate_parametrized_tests(Parametrized)


class Continuous(MultiProcContinuousTest):
    world_size = 2
    pids = set()

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_1_sum(self):
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        self.assertEqual(tensor.item(), 2)

    def test_2_fails(self):
        if self.rank == 1:
            raise AssertionError("rank 1 is wrong")
        dist.barrier()

    def test_3_still_runs(self):
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        self.assertEqual(tensor.item(), 2)

    def test_4_skips(self):
        raise unittest.SkipTest("not in this class")

    def test_5_warm(self):
        print(f"pid {os.getpid()}")
        Continuous.pids.add(os.getpid())

    def test_6_warm(self):
        assert os.getpid() in Continuous.pids, "these ranks are not those of the test before"


class Threads(MultiThreadedTestCase):
    world_size = 3

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_sum(self):
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        self.assertEqual(tensor.item(), 3)

    def test_fails(self):
        if self.rank == 2:
            raise AssertionError("thread 2 is wrong")
        dist.barrier()

    def test_hangs(self):
        if self.rank == 1:
            forever = threading.Event()
            forever.wait()
