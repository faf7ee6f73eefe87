"""Tests that behave badly in one rank; what disttest makes of each is checked by tests/integration."""

import ctypes
import os
import signal
import subprocess
import sys
import time
import unittest

import pytest
import torch
import torch.distributed as dist

two = pytest.mark.world_size(2)


@two
def test_passes(world):
    x = torch.full((4,), float(world.rank))
    dist.all_reduce(x)
    assert x[0] == 1


@two
def test_fails_on_rank_1(world):
    assert world.rank == 0, "rank one says no"


@two
def test_fails_while_peer_waits(world):
    if world.rank == 1:
        raise ValueError("boom on rank 1")
    dist.barrier()


@two
def test_segfault(world):
    if world.rank == 1:
        ctypes.string_at(0)
    dist.barrier()


@two
def test_sigkill(world):
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


@two
def test_exit_0(world):
    if world.rank == 1:
        os._exit(0)
    dist.barrier()


@two
def test_exit_0_peer_independent(world):
    if world.rank == 1:
        os._exit(0)


@two
def test_sys_exit_3(world):
    if world.rank == 1:
        sys.exit(3)


@two
def test_skip_everywhere(world):
    pytest.skip("not today")


@two
def test_skip_on_rank_1(world):
    if world.rank == 1:
        pytest.skip("rank 1 does not do this")


@two
@pytest.mark.skip(reason="decided before a process starts")
def test_skip_by_mark(world):
    raise AssertionError("must not run")


@two
@pytest.mark.xfail(reason="known", strict=True)
def test_xfail_on_one_rank(world):
    if world.rank == 1:
        raise AssertionError("expected")
    dist.barrier()


@two
@pytest.mark.xfail(reason="outdated", strict=True)
def test_strict_xpass(world):
    pass


@two
@pytest.mark.xfail(reason="outdated", strict=False)
def test_lenient_xpass(world):
    pass


@two
@pytest.mark.xfail(reason="known", strict=True)
def test_crash_is_no_xfail(world):
    if world.rank == 1:
        os._exit(1)
    dist.barrier()


@two
@pytest.mark.timeout(1)
def test_hang(world):
    if world.rank == 1:
        time.sleep(600)
    dist.barrier()


@two
@pytest.mark.timeout(2)
def test_one_rank_finishes_other_hangs(world):
    if world.rank == 1:
        time.sleep(600)


@two
@pytest.mark.timeout(2)
def test_ignores_sigterm_and_hangs(world):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


@pytest.fixture
def broken(world):
    if world.rank == 1:
        raise RuntimeError("fixture broke")
    yield
    if world.rank == 0:
        time.sleep(600)


@two
def test_setup_error(world, broken):
    dist.barrier()


@pytest.fixture
def broken_teardown(world):
    yield
    if world.rank == 1:
        raise RuntimeError("teardown broke")


@two
def test_teardown_error(world, broken_teardown):
    dist.barrier()


@two
def test_closes_stdio(world):
    os.close(1)
    os.close(2)
    dist.barrier()


@two
def test_closes_stdio_and_fails(world):
    os.close(1)
    os.close(2)
    assert world.rank == 0


@two
def test_grandchild_keeps_pipe_open(world):
    if world.rank == 1:
        subprocess.Popen(["sleep", "600"], close_fds=False)
    dist.barrier()


@two
def test_double_fork_new_session(world):
    if world.rank == 1 and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    dist.barrier()


@two
def test_forked_grandchild_holds_channel_and_rank_dies(world):
    if world.rank == 1:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


@two
def test_prints_oddities(world):
    print("\x1b[31mred\x1b[0m \x00 nul ]]> end \udc80 surrogate")
    assert world.rank == 0, "\x1b[31mred\x1b[0m \x00 nul ]]> end \udc80 surrogate"


@two
def test_flood(world):
    line = b"x" * 1023 + b"\n"
    for _ in range(200):
        os.write(1, line * 1024)
    os.write(1, b"the end\n")


@two
@pytest.mark.parametrize("text", ["é" * 20 + "/" + "x" * 300, "a b[c]"], ids=lambda text: text)
def test_long_unicode_id(world, text):
    assert world.size == 2


@two
def test_after_all_that(world):
    dist.barrier()


class TestUnittest(unittest.TestCase):
    @two
    def test_method(self):
        from disttest.testing import current_world

        world = current_world()
        x = torch.ones(1)
        dist.all_reduce(x)
        self.assertEqual(x.item(), world.size)

    @pytest.mark.world_size(1, 2)
    def test_subtests(self):
        from disttest.testing import current_world

        world = current_world()
        for value in range(3):
            with self.subTest(value=value):
                self.assertNotEqual((value, world.rank), (1, 1))

    @two
    @unittest.skip("by unittest")
    def test_skipped(self):
        raise AssertionError
