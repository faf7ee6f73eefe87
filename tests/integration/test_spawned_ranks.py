"""Suites that start their ranks by mp.spawn: a hang and a failure name the rank and its line."""

from __future__ import annotations

import re

import pytest

SPAWNS = """
    import os
    import signal
    import pytest
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def work(rank, path, hangs):
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
        x = torch.ones(2)
        dist.all_reduce(x)
        if rank == 1:
            assert hangs, "wrong sum"  # line 14
            dist.recv(x, 0)  # line 15
        dist.barrier()  # line 16

    def die(rank, how):
        if rank == 1:
            how()

    def crash():
        os.kill(os.getpid(), signal.SIGSEGV)  # line 23

    def leave():
        os._exit(3)

    def test_crashes():
        mp.spawn(die, args=(crash,), nprocs=2, join=True)

    def test_leaves():
        mp.spawn(die, args=(leave,), nprocs=2, join=True)

    @pytest.mark.timeout(25)  # its ranks import torch before they hang
    def test_hangs(tmp_path):
        mp.spawn(work, args=(str(tmp_path / "f"), True), nprocs=2, join=True)

    def test_fails(tmp_path):
        mp.spawn(work, args=(str(tmp_path / "f"), False), nprocs=2, join=True)
"""
FORKS = """
    import multiprocessing
    import threading
    import pytest

    def work():
        threading.Event().wait()  # line 7

    @pytest.mark.timeout(8)
    def test_hangs():
        context = multiprocessing.get_context("fork")
        started = [context.Process(target=work) for _ in range(2)]
        for each in started:
            each.start()
        for each in started:
            each.join()  # line 16
"""


@pytest.fixture
def spawned(lab):
    lab.write(test_spawns=SPAWNS, test_forks=FORKS)
    return lab.run("run", ".", "--isolate-files")


def test_ranks_of_mp_spawn_and_forks_are_named_with_their_lines(spawned):
    hung = spawned.result("test_spawns.py::test_hangs")
    assert re.match(
        r"rank 0 of mp\.spawn \(process \d+\) is in work at test_spawns\.py:16; "
        r"rank 1 of mp\.spawn \(process \d+\) is in work at test_spawns\.py:15; "
        r"its process is in test_hangs at test_spawns\.py:",
        hung.message,
    ), hung.message
    (record,) = hung.ranks
    assert ["rank 0 of mp.spawn", "rank 1 of mp.spawn"] == [process.role for process in record.started]
    assert 2 == record.all_stacks.count(" of mp.spawn):\n")
    assert "not available" not in record.all_stacks

    failed = spawned.result("test_spawns.py::test_fails")
    assert "rank 1 of mp.spawn failed at test_spawns.py:14: AssertionError: wrong sum" == failed.message

    crashed = spawned.result("test_spawns.py::test_crashes")
    assert (
        "rank 1 of mp.spawn was killed by SIGSEGV (a process crashed in crash at test_spawns.py:23)"
        == crashed.message
    )
    assert 'test_spawns.py", line 23 in crash' in crashed.ranks[0].stacks
    assert "rank 1 of mp.spawn exited with code 3" == spawned.result("test_spawns.py::test_leaves").message

    forked = spawned.result("test_forks.py::test_hangs")
    assert "; its process is in test_hangs at test_forks.py:16 " in forked.message, forked.message
    assert 2 == forked.message.count(" is in work at test_forks.py:7")
    assert "no test ran in a world" not in spawned.output
