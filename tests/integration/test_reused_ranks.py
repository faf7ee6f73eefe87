"""Ranks of torch's classes that only start them run one test after another, and no verdict shows it."""

from __future__ import annotations

import random
import re

import pytest

from disttest.model import Outcome

pytestmark = pytest.mark.forked_runs

HEAD = """
    import os
    import signal
    import subprocess
    import threading
    import time
    import unittest

    import pytest
    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import (
        MultiProcessTestCase, requires_gloo, skip_if_lt_x_gpu
    )

    STATE = {"tests": 0}


    class Base(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def tearDown(self):
            super().tearDown()
            try:
                os.remove(self.file_name)
            except OSError:
                pass

        def sum_up(self):
            store = dist.FileStore(self.file_name, self.world_size)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
            ones = torch.ones(2)
            dist.all_reduce(ones)
            self.assertEqual(self.world_size, ones[0].item())


    def is_used():
        # What nobody looks for, as something that a test may leave has to be.
        used = hasattr(torch, "_left_by_a_test")
        torch._left_by_a_test = True
        return used
"""

CLASSES = """
    class Groups(Base):
        def test_1(self):
            print("I run the first test")
            self.sum_up()

        def test_2(self):
            self.sum_up()
            dist.barrier(dist.new_group([0, 1]))  # who has joined must not leave while another one still joins

        @requires_gloo()
        def test_3_makes_the_same_groups_again(self):
            self.sum_up()
            self.assertEqual("0", dist.group.WORLD.group_name)


    class Skips(Base):
        def test_1(self):
            self.sum_up()

        @skip_if_lt_x_gpu(1)
        def test_2_by_code(self):
            raise AssertionError("not reached")

        def test_3_by_raising(self):
            raise unittest.SkipTest("not today")

        def test_4(self):
            self.sum_up()


    class SkipsInAGroup(Base):
        def test_1(self):
            self.sum_up()

        def test_2(self):
            self.sum_up()
            raise unittest.SkipTest("no more than that")

        def test_3(self):
            self.sum_up()


    class PutBack(Base):
        def test_1(self):
            os.environ["LEFT"] = "1"
            os.chdir("/")
            torch.set_default_dtype(torch.float64)

        def test_2(self):
            assert "LEFT" not in os.environ
            assert os.getcwd() != "/"
            assert torch.get_default_dtype() is torch.float32


    class LeavesAThread(Base):
        def test_1(self):
            threading.Thread(name="left", target=threading.Event().wait, daemon=True).start()

        def test_2(self):
            assert "left" not in [thread.name for thread in threading.enumerate()]


    class LeavesAProcess(Base):
        def test_1(self):
            subprocess.Popen(["sleep", "1000"])

        def test_2(self):
            pass


    class LeavesAGroup(Base):
        destroy_pg_upon_exit = False

        def test_1(self):
            self.sum_up()

        def test_2(self):
            self.sum_up()


    class ChangesItsModule(Base):
        def test_1(self):
            STATE["tests"] += 1

        def test_2(self):
            assert STATE == {"tests": 0}


    class Fails(Base):
        def test_1(self):
            self.sum_up()

        def test_2(self):
            self.sum_up()
            assert self.rank == 0, "rank 1 is wrong"

        def test_3(self):
            self.sum_up()


    class FailsWhereUsed(Base):
        def test_1(self):
            is_used()

        def test_2(self):
            self.sum_up()
            assert not is_used(), "somebody was here"


    class Crashes(Base):
        def test_1(self):
            pass

        def test_2(self):
            if self.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        def test_3(self):
            pass


    class HangsWhereUsed(Base):
        def test_1(self):
            is_used()

        @pytest.mark.timeout(4)
        def test_2(self):
            time.sleep(1000 if is_used() and self.rank == 1 else 2)


    class Refused(Base):
        def setUp(self):
            super().setUp()
            self.started_s = time.monotonic()

        def test_1(self):
            pass

        def test_2(self):
            pass
"""
# What the main process changes reaches new ranks only.
MAIN = """
    @pytest.fixture
    def variable(monkeypatch):
        monkeypatch.setenv("OF_ONE_TEST", "1")


    class Inherits(Base):
        def test_1(self):
            assert "OF_ONE_TEST" not in os.environ

        @pytest.mark.usefixtures("variable")
        def test_2(self):
            assert "OF_ONE_TEST" in os.environ

        def test_3(self):
            assert "OF_ONE_TEST" not in os.environ


    class Switches(Base):
        def setUp(self):
            super().setUp()

        def tearDown(self):
            super().tearDown()
            os.environ["TORN_DOWN"] = str(int(os.environ.get("TORN_DOWN", "0")) + 1)

        def test_1(self):
            assert "TORN_DOWN" not in os.environ

        def test_2(self):
            assert os.environ["TORN_DOWN"] == "1"


    class Moves(Base):
        def test_1(self):
            assert os.getcwd() != "/"

        def test_2(self):
            assert os.getcwd() == "/"
"""
MOVING = """
    import os

    def pytest_runtest_setup(item):
        if item.nodeid.endswith("Moves::test_2"):
            os.chdir("/")
"""
NEW = "got new ranks, because the main process had changed since the last ones started"
NOTE = "failed in reused ranks, and was run again in new ones"
WARM = ("--isolation", "warm")
ONE_WORLD = ("--slots", "1")  # one main process for all of them


def pids(run, *names):
    """The processes of ranks, one set for each test."""
    return [tuple(record.pid for record in run.result(name).ranks if record.rank >= 0) for name in names]


def outcomes(run):
    return {test.test.nodeid.partition("::")[2]: test.final.outcome.value for test in run.run.tests}


@pytest.fixture(scope="module")
def run(module_lab):
    module_lab.write(test_ranks=HEAD + CLASSES + MAIN, conftest=MOVING)
    return module_lab.run("test_ranks.py", "--timeout", "60", *WARM, *ONE_WORLD)


def test_ranks_are_the_same_processes_with_a_group_of_each_test(run):
    names = ("Groups::test_1", "Groups::test_2", "Groups::test_3_makes_the_same_groups_again")

    assert [Outcome.PASSED] * 3 == [run.result(name).outcome for name in names], run.output
    assert 1 == len({*pids(run, *names)})
    assert "I run the first test" in run.log(names[0], 1)
    assert "I run the first test" not in run.log(names[1], 1)


def test_each_class_has_ranks_of_its_own(run):
    assert {*pids(run, "Groups::test_1")}.isdisjoint(pids(run, "Skips::test_1"))


def test_a_skip_ends_no_rank(run):
    names = ("Skips::test_1", "Skips::test_2_by_code", "Skips::test_3_by_raising", "Skips::test_4")

    skips = [run.result(name) for name in names[1:3]]
    assert [Outcome.SKIPPED] * 2 == [skip.outcome for skip in skips]
    assert "not today" == skips[1].message
    assert 1 == len({*pids(run, *names)})


def test_a_skip_ends_no_rank_though_it_leaves_its_group(run):
    names = ("SkipsInAGroup::test_1", "SkipsInAGroup::test_2", "SkipsInAGroup::test_3")

    results = [run.result(name) for name in names]
    assert [Outcome.PASSED, Outcome.SKIPPED, Outcome.PASSED] == [result.outcome for result in results], (
        run.output
    )
    assert ("no more than that", ()) == (results[1].message, results[1].notes)
    assert 1 == len({*pids(run, *names)})


def test_what_can_be_put_back_is(run):
    assert Outcome.PASSED is run.result("PutBack::test_2").outcome
    assert 1 == len({*pids(run, "PutBack::test_1", "PutBack::test_2")})
    assert () == run.result("PutBack::test_1").notes  # new ranks would not have had it


@pytest.mark.parametrize(
    ("name", "leaked"),
    [
        ("LeavesAThread", r"thread left"),
        ("LeavesAProcess", r"child process \d+ \(sleep 1000\) \(still there\)"),
        ("LeavesAGroup", r"process group \(not destroyed\)"),
        ("ChangesItsModule", r"another value of test_ranks\.STATE"),
    ],
)
def test_what_cannot_ends_the_ranks_and_is_told(run, name, leaked):
    names = (f"{name}::test_1", f"{name}::test_2")
    results = [run.result(each) for each in names]

    assert [Outcome.PASSED] * 2 == [result.outcome for result in results], run.output
    assert 2 == len({*pids(run, *names)})
    notes = results[0].notes
    assert notes
    assert all(re.fullmatch(rf"ranks? [01, ]+ leaked {leaked}", note) for note in notes), notes


def test_a_failure_counts_as_it_is_in_new_ranks_and_ends_them(run):
    failed = run.result("Fails::test_2")

    assert (Outcome.FAILED, 1) == (failed.outcome, failed.culprit)
    assert "rank 1 is wrong" in failed.message
    assert [f"{NOTE} (rank 1: AssertionError: rank 1 is wrong)"] == [n for n in failed.notes if NOTE in n]
    assert 3 == len({*pids(run, "Fails::test_1", "Fails::test_2", "Fails::test_3")})
    assert Outcome.PASSED is run.result("Fails::test_3").outcome


def test_no_other_test_has_met_what_an_earlier_one_left(run):
    again = {
        test.test.nodeid.partition("::")[2]
        for test in run.run.tests
        if any(NOTE in note for note in test.final.notes)
    }

    assert {f"{name}::test_2" for name in ("Fails", "FailsWhereUsed", "Crashes", "HangsWhereUsed")} == again


def test_reuse_makes_no_test_red(run):
    result = run.result("FailsWhereUsed::test_2")

    assert (Outcome.PASSED, 1) == (result.outcome, len(result.notes)), run.output
    assert "somebody was here" in result.notes[0]
    assert f"FailsWhereUsed::test_2: {result.notes[0]}" in " ".join(run.run.notes)
    assert result.notes[0] in (run.results / "report.html").read_text()


def test_a_crash_is_told_as_in_new_ranks(run):
    result = run.result("Crashes::test_2")

    assert (Outcome.ERROR, 1) == (result.outcome, result.culprit)
    assert "was killed by SIGKILL" in result.message
    assert Outcome.PASSED is run.result("Crashes::test_3").outcome


def test_a_time_limit_that_used_ranks_have_spent_begins_anew(run):
    result = run.result("HangsWhereUsed::test_2")

    assert (Outcome.PASSED, True) == (result.outcome, NOTE in result.notes[0]), run.output
    assert result.duration_s > 4


def test_what_the_main_process_has_changed_reaches_the_ranks(run):
    names = ("Inherits::test_1", "Inherits::test_2", "Inherits::test_3")
    told = ("Switches::test_1", "Switches::test_2")
    forked = ("Moves::test_1", "Moves::test_2")

    assert [Outcome.PASSED] * 7 == [run.result(name).outcome for name in names + told + forked], run.output
    assert [3, 1, 2] == [len({*pids(run, *each)}) for each in (names, told, forked)]
    assert () == run.result(told[1]).notes
    assert (f"{NEW}: directory",) == run.result(forked[1]).notes


def test_who_does_more_gets_new_ranks_and_is_told_why(run, module_lab):
    listed = module_lab.run("list", "test_ranks.py", "--tests", *WARM).output

    assert "Groups::test_1  (2 ranks, reused)" in listed
    assert "Refused::test_1  (2 ranks, new: Refused.setUp does more (monotonic, started_s, time))" in listed
    assert "Inherits::test_2  (2 ranks, new: it uses the fixture variable)" in listed
    assert 2 == len({*pids(run, "Refused::test_1", "Refused::test_2")})
    assert "ranks: new: Refused.setUp does more" in (run.results / "junit.xml").read_text()


@pytest.mark.slow("four commands, one of them with new ranks for each test")
def test_who_does_not_ask_for_it_and_repetitions_have_new_ranks(lab):
    lab.write(test_ranks=HEAD + CLASSES)
    for words in ((), ("--isolation", "fresh"), (*WARM, "--repeat", "2")):
        listed = lab.run("list", "test_ranks.py", "--tests", *words).output
        assert ("Groups::test_1" in listed, "reused" in listed) == (True, False), listed
    ended = lab.run("test_ranks.py", "-k", "Groups", *ONE_WORLD)

    assert 3 == len({*pids(ended, "Groups::test_1", "Groups::test_2", "test_3_makes_the_same_groups_again")})


OF_TORCHS_SUITE = """
    import os
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": "2"}

    import unittest
    import torch
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


    class Own(TestDistBackend, DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_own_1_meets_once_more_on_one_rank(self):
            if self.rank == 0:
                self._barrier(wait_for=1)
            raise unittest.SkipTest("as most of them are")

        def test_own_2(self):
            self._barrier()
            torch._left_by_a_test = True

        def test_own_3(self):
            self._barrier()
            assert not hasattr(torch, "_left_by_a_test"), "somebody was here"

        def test_own_4(self):
            self._barrier()
"""


def test_the_base_of_torchs_own_suite_meets_anew_in_each_test(lab):
    ended = lab.write(test_own=OF_TORCHS_SUITE).run(
        "test_own.py", "-k", "test_own_", "--timeout", "60", *WARM, *ONE_WORLD
    )
    one, two, three, four = (
        f"Own::test_own_{name}" for name in ("1_meets_once_more_on_one_rank", "2", "3", "4")
    )

    assert Outcome.SKIPPED is ended.result(one).outcome, ended.output
    assert [Outcome.PASSED] * 3 == [ended.result(name).outcome for name in (two, three, four)], ended.output
    assert 1 == len({*pids(ended, one, two)})
    (note,) = ended.result(three).notes
    assert re.fullmatch(rf"{NOTE} \(rank [01]: AssertionError: somebody was here\)", note)
    assert 3 == len({*pids(ended, two, three, four)})


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_order_changes_a_verdict(run, lab, seed):
    lab.write(test_ranks=HEAD + CLASSES + MAIN, conftest=MOVING)
    expected = {
        name: outcome
        for name, outcome in outcomes(run).items()
        if not name.startswith(("HangsWhereUsed", "Switches", "Moves"))
    }
    shuffled = [f"test_ranks.py::{name}" for name in expected]
    random.Random(seed).shuffle(shuffled)
    ended = lab.run(*shuffled, "--timeout", "60", *WARM, *ONE_WORLD)

    assert expected == outcomes(ended)
