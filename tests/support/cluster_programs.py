"""Test files that runs on a cluster are given: the same for every scheduler."""

from __future__ import annotations

from pathlib import Path

from cluster_run import ClusterRun

from disttest.model import Cause, Outcome, TestResult

SPAN = ("--nodes", "2", "--world-sizes", "4")
"""The options with which these run: worlds of four over two nodes."""


def faults(*, hang_limit_s: int) -> str:
    """All faults that end one test and not the run.

    Args:
        hang_limit_s: the time limit of the test that hangs; by then its other ranks have to wait for the one that does.
    """
    return f"""
    import os, signal, subprocess, time
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size()

    def test_first(world):
        assert dist.get_world_size() == 4

    def test_raises_on_the_other_node(world):
        if world.rank == 2:
            raise ValueError("boom")
        dist.barrier()

    def test_crashes(world):
        if world.rank == 3:
            signal.raise_signal(signal.SIGSEGV)
        dist.barrier()

    @pytest.mark.timeout({hang_limit_s})
    def test_hangs(world):
        if world.rank == 2:
            while True:
                time.sleep(0.1)
        dist.all_reduce(torch.ones(2))

    def test_floods(world):
        line = b"x" * 1023 + b"\\n"
        for _ in range(25 * 1024):
            os.write(1, line)

    def test_leaves_a_process_in_a_session_of_its_own(world):
        subprocess.Popen(["sleep", "86399"], start_new_session=True)

    def test_needs_a_shared_folder(world, world_tmp_path):
        raise AssertionError("never runs")

    @pytest.mark.nodes(1)
    @pytest.mark.world_size(2)
    def test_on_one_node(world):
        assert os.environ["GROUP_WORLD_SIZE"] == "1"

    def test_last(world):
        x = torch.full((2,), float(world.rank))
        dist.all_reduce(x)
        assert x[0] == 6
        assert os.environ["GROUP_RANK"] == str(world.rank // 2)
        assert os.environ["LOCAL_RANK"] == str(world.rank % 2)
"""


def waits(*, limit_s: int = 60, steps: int = 600) -> str:
    """A test that is in a loop of collectives when the file ``here`` appears, one before it and one after it.

    Args:
        limit_s: the time limit of the test.
        steps: how many collectives there are; each takes a tenth of a second.
    """
    return f"""
    import time
    from pathlib import Path
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(4)

    def test_before(world):
        dist.barrier()

    @pytest.mark.timeout({limit_s})
    def test_waits(world):
        dist.barrier()
        if world.rank == 0:
            Path("here").write_text("here")
        for _ in range({steps}):
            dist.all_reduce(torch.ones(1))
            time.sleep(0.1)

    def test_after(world):
        pass
"""


TALKS = """
    import pathlib, time
    import pytest

    def talk(rank, seen):
        print("hello from", rank, flush=True)
        while not pathlib.Path(seen).exists():
            time.sleep(0.01)
        print("rank", rank, "without an end", end="")

    @pytest.mark.nodes(2)
    @pytest.mark.world_size(4)
    def test_over_nodes(world):
        talk(world.rank, "four")

    @pytest.mark.nodes(1)
    @pytest.mark.world_size(2)
    def test_on_one(world):
        talk(world.rank, "two")

    def test_alone():
        print("of no rank")
        assert False
"""
"""Tests that print, each until its file is there: ``four`` over two nodes, ``two`` on one of them, and one without ranks."""


def assert_heard_while_it_runs(run: ClusterRun, folder: Path) -> None:
    """In a run of the test of :data:`TALKS` over two nodes, what its ranks print is shown before they end."""
    for rank in range(4):
        run.await_words(f"[rank {rank}] hello from {rank}\n", limit_s=240)
    (folder / "four").touch()
    assert run.wait().exit_code == 0, run.output


def assert_lost(run: ClusterRun, *words: str) -> TestResult:
    """In a run of :func:`waits`, the test that ran is an infrastructure error in these words; the one before it counts.

    Returns:
        What came of the test that ran.
    """
    assert run.exit_code == 7, run.output
    assert run.result("test_before[4").outcome is Outcome.PASSED
    result = run.result("test_waits[4")
    assert (result.outcome, result.cause) == (Outcome.ERROR, Cause.INFRASTRUCTURE), result.message
    for word in words:
        assert word in result.message, result.message
    return result
