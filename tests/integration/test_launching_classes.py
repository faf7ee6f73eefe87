"""Classes that launch their ranks by themselves (``is_dist_test``, as DeepSpeed's): hosted, as torch's classes are."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from lab import Ended, Lab

from disttest.model import Outcome
from disttest.plugins.deadlock.proven import proof_of

pytestmark = pytest.mark.forked_runs

SUITE = Path(__file__).parents[2] / "examples" / "adopt" / "classes"
TESTS = '''
import ctypes
import os
import threading

import pytest
import torch
import torch.distributed as dist
from harness import DistributedFixture, DistributedTest


class TestOrdinary(DistributedTest):
    def test_passes(self):
        print(f"I am rank {dist.get_rank()}, a child of {os.getppid()}")

    def test_fails(self):
        assert dist.get_rank() == 0, "rank 1 is wrong"

    def test_crashes(self):
        if dist.get_rank() == 1:
            ctypes.string_at(0)
        dist.barrier()

    @pytest.mark.timeout(60)
    def test_deadlock(self):
        if dist.get_rank() == 0:
            dist.barrier()
        dist.all_reduce(torch.ones(1)) if dist.get_rank() == 0 else dist.recv(torch.ones(1), 0)

    @pytest.mark.timeout(20)
    def test_hangs(self):
        if dist.get_rank() == 1:
            threading.Event().wait()

    def test_skips(self):
        pytest.skip("not today")

    def test_skips_in_one_rank(self):
        if dist.get_rank() == 1:
            pytest.skip("not me")


class TestKept(DistributedTest):
    reuse_dist_env = True

    @pytest.mark.parametrize("nth", [1, 2])
    def test_each(self, nth):
        print(f"pid {os.getpid()}")

    def test_fails(self):
        assert dist.get_rank() == 0, "a kept rank is wrong"

    def test_skips(self):
        pytest.skip("kept")


class TestSizes(DistributedTest):
    world_size = [1, 3]

    def test_both(self):
        print(f"one of {dist.get_world_size()}")

    def test_larger_fails(self):
        assert dist.get_world_size() == 1

    @pytest.mark.world_size(3)
    def test_marked(self):
        assert dist.get_world_size() == 3

    @pytest.mark.world_size([2, 1])
    def test_one_alone_skips(self):
        if dist.get_world_size() == 1:
            pytest.skip("needs two")

    @pytest.mark.parametrize("world_size", [1, 3])
    def test_told(self, world_size):
        assert dist.get_world_size() == world_size


class _Written(DistributedFixture):
    world_size = 3

    def run(self, tmp_path):
        (tmp_path / f"{dist.get_rank()}.txt").touch()
        print(f"the fixture of rank {dist.get_rank()}")


class _Broken(DistributedFixture):
    def run(self):
        assert dist.get_rank() == 0, "the fixture is wrong"


written, broken = pytest.fixture(_Written()), pytest.fixture(_Broken())


class TestFixtures(DistributedTest):
    def test_reads(self, written, tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0.txt", "1.txt", "2.txt"]
        print(f"the test of rank {dist.get_rank()}")

    def test_not_reached(self, broken):
        raise AssertionError("not reached")


class TestBesideAThread(DistributedTest):
    @pytest.fixture(autouse=True)
    def thread(self):
        leave = threading.Event()
        thread = threading.Thread(target=leave.wait)
        thread.start()
        yield
        leave.set()
        thread.join()

    def test_passes(self):
        dist.barrier()

    def test_fails(self):
        assert dist.get_rank() == 0, "rank 1 is wrong"


class TestOwnWay(DistributedTest):
    """Has no process of its own to host."""

    def _launch_procs(self, num_procs, init_method):
        self._dist_run(0, 1, None, init_method)

    def test_passes(self):
        assert dist.get_world_size() == 1
'''


def suite_in(lab: Lab) -> Lab:
    for name in ("harness.py", "conftest.py"):
        shutil.copy(SUITE / name, lab.folder)
    return lab.write(test_launching=TESTS)


@pytest.fixture(scope="module")
def ended(module_lab) -> Ended:
    return suite_in(module_lab).run("--timeout", "100", "test_launching.py", limit_s=480)


def outcome(ended: Ended, name: str) -> Outcome:
    return ended.result(name).outcome


def test_ranks_are_forked_from_a_main_process_and_write_a_log_each(ended) -> None:
    result = ended.result("TestOrdinary::test_passes")

    assert (Outcome.PASSED, [0, 1]) == (result.outcome, [record.rank for record in result.ranks]), (
        ended.output
    )
    parents = {ended.log("TestOrdinary::test_passes", rank).partition("a child of ")[2] for rank in (0, 1)}
    assert 1 == len(parents)
    assert "I am rank 1," in ended.log("TestOrdinary::test_passes", 1)
    assert (
        "started by their class"
        not in Path(ended.results, result.ranks[0].log).with_name("main.log").read_text()
    )


def test_a_failure_names_its_rank_with_its_traceback(ended) -> None:
    result = ended.result("TestOrdinary::test_fails")

    assert (Outcome.FAILED, 1) == (result.outcome, result.culprit)
    assert "rank 1 of 2 failed: AssertionError: rank 1 is wrong" in result.message
    assert "in test_fails" in result.details
    assert result.torch_outcome is None


def test_a_crash_names_its_rank_and_the_victims(ended) -> None:
    result = ended.result("TestOrdinary::test_crashes")

    assert 1 == result.culprit
    assert "rank 1 of 2 was killed by SIGSEGV" in result.message
    assert (0,) == result.victims
    assert not [note for note in result.notes if "torch" in note]


def test_a_deadlock_is_proven(ended) -> None:
    result = ended.result("TestOrdinary::test_deadlock")

    assert proof_of(result) is not None, result.message
    assert "timed out" not in result.message


def test_a_hang_ends_at_the_limit_with_stacks(ended) -> None:
    result = ended.result("TestOrdinary::test_hangs")

    assert (Outcome.FAILED, [False, True]) == (result.outcome, [record.hung for record in result.ranks])
    assert result.message.startswith("rank 1 is in test_hangs at test_launching.py:")
    assert result.message.endswith("; rank 0 had finished (timed out after 20 s)")
    assert "in test_hangs" in result.ranks[1].stacks


def test_a_skip_in_all_ranks_skips_with_its_reason(ended) -> None:
    result = ended.result("TestOrdinary::test_skips")
    assert (Outcome.SKIPPED, "not today") == (result.outcome, result.message)

    result = ended.result("TestOrdinary::test_skips_in_one_rank")
    assert (Outcome.FAILED, "ranks disagree: rank 0 passed, rank 1 skipped") == (
        result.outcome,
        result.message,
    )


def test_ranks_are_kept_where_the_class_keeps_them(ended) -> None:
    logs = [[ended.log(f"TestKept::test_each[{nth}]", rank) for rank in (0, 1)] for nth in (1, 2)]

    assert logs[0] == logs[1]
    assert logs[0][0] != logs[0][1]
    assert (
        "rank 1 of 2 failed: AssertionError: a kept rank is wrong"
        in ended.result("TestKept::test_fails").message
    )
    assert "kept" == ended.result("TestKept::test_skips").message


def test_sizes_by_class_mark_and_parameter(ended) -> None:
    both = ended.result("TestSizes::test_both")
    assert (Outcome.PASSED, 3) == (both.outcome, len(both.ranks))
    assert "one of 1\n\n[disttest: launch 2 of the test, rank 0 of 3]\none of 3\n" in ended.log(
        "TestSizes::test_both", 0
    )
    assert Outcome.PASSED is outcome(ended, "TestSizes::test_marked")
    assert [1, 3] == [len(ended.result(f"TestSizes::test_told[{size}]").ranks) for size in (1, 3)]
    # how many fail in the time that the first one leaves the others is the machine's to say
    assert re.match(
        r"all 3 ranks failed|rank \d of 3 failed", ended.result("TestSizes::test_larger_fails").message
    )
    assert "needs two" == ended.result("TestSizes::test_one_alone_skips").message
    sizes = {test.test.name: test.test.world.size for test in ended.run.tests if test.test.world}
    assert (3, 3, 2, 1) == tuple(
        sizes[f"test_{name}"] for name in ("both", "marked", "one_alone_skips", "told[1]")
    )


def test_a_fixture_launches_its_own_ranks(ended) -> None:
    result = ended.result("TestFixtures::test_reads")
    assert (Outcome.PASSED, 2) == (result.outcome, len(result.ranks))
    assert [3] == [test.test.world.size for test in ended.run.tests if test.test.name == "test_reads"]
    log = ended.log("TestFixtures::test_reads", 1)
    assert (
        log.index("the fixture of rank 1")
        < log.index("launch 2 of the test, rank 1 of 2")
        < log.index("the test")
    )

    broken = ended.result("TestFixtures::test_not_reached")
    assert "rank 1 of 2 failed" in broken.message
    assert "the fixture is wrong" in broken.message


def test_where_forking_is_unsafe_the_class_starts_its_ranks(ended) -> None:
    result = ended.result("TestBesideAThread::test_passes")

    assert (Outcome.PASSED, 2) == (result.outcome, len(result.ranks)), ended.output
    assert (
        "the main process failed: AssertionError: rank 1 is wrong"
        in ended.result("Thread::test_fails").message
    )
    (log,) = ended.results.glob("logs/*BesideAThread-test_passes*/*/main.log")
    assert "disttest: ranks are started by their class instead of forked here: 1 thread (" in log.read_text()


def test_a_class_with_a_way_of_its_own_is_left_alone(ended) -> None:
    assert Outcome.PASSED is outcome(ended, "TestOwnWay::test_passes")
    assert "" == ended.result("TestOwnWay::test_passes").world_id
