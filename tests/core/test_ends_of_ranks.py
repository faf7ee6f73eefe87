"""How ranks end that classes start: exits of threads, skips of some, and ends that no mark covers."""

import pytest

from disttest.model import Outcome

SUITE = """
    import os
    import signal
    import sys
    import time
    import unittest

    import pytest
    import torch.distributed as dist
    from torch.testing._internal import common_distributed as of_torch

    from disttest import testing


    class Threads:
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_threads()

        def test_red_exits_with_a_text(self):
            if self.rank == 1:
                sys.exit("fatal")
            dist.barrier()

        def test_red_exits_with_a_code(self):
            if self.rank == 1:
                sys.exit(3)

        def test_red_is_interrupted(self):
            if self.rank == 1:
                raise KeyboardInterrupt

        def test_red_skipped_by_one(self):
            if self.rank == 1:
                raise unittest.SkipTest("not me")

        def test_red_skipped_by_one_while_its_peer_waits(self):
            if self.rank == 1:
                raise unittest.SkipTest("not me")
            dist.barrier()

        def test_skipped_by_all(self):
            raise unittest.SkipTest("nobody")

        def test_passed_with_code_0(self):
            sys.exit(0)

        def test_red_exits_with_code_0_while_its_peer_waits(self):
            if self.rank == 1:
                sys.exit(0)
            dist.barrier()

        def test_red_exits_with_a_list(self):
            if self.rank == 1:
                sys.exit(["fatal"])

        def test_red_fails_and_wakes_its_peer(self):
            if self.rank == 1:
                assert not "here"
            dist.barrier()


    class TestThreads(Threads, testing.MultiThreadedTestCase):
        pass


    class TestThreadsOfTorch(Threads, of_torch.MultiThreadedTestCase):
        pass


    class Decorated:
        def test_red_exits_with_a_code(self):
            if dist.get_rank() == 1:
                sys.exit(1)

        def test_red_skipped_by_one(self):
            if dist.get_rank() == 1:
                raise unittest.SkipTest("not me")

        def test_red_fails(self):
            raise ValueError("me")

        def test_skipped_by_one_while_its_peer_waits(self):
            if dist.get_rank() == 1:
                raise unittest.SkipTest("not me")
            dist.barrier()

        @pytest.mark.ranks_may_differ
        def test_skipped_by_one_that_may_differ(self):
            if dist.get_rank() == 1:
                raise unittest.SkipTest("not me")

        def test_passed_with_code_0(self):
            sys.exit(0)


    def decorated(decorate):
        tests = {name: decorate(test, world_size=2) for name, test in vars(Decorated).items() if "test_" in name}
        return type("Decorated", (unittest.TestCase,), tests)


    class TestDecorated(decorated(testing.spawn_threads_and_init_comms)):
        pass


    class TestDecoratedOfTorch(decorated(of_torch.spawn_threads_and_init_comms)):
        pass


    class Processes:
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        @unittest.expectedFailure
        def test_red_crash_is_not_expected(self):
            if self.rank == 1:
                os.kill(os.getpid(), signal.SIGSEGV)

        @pytest.mark.timeout(3)
        @pytest.mark.xfail
        def test_red_hang_is_not_expected(self):
            if self.rank == 1:
                time.sleep(3600)

        @unittest.expectedFailure
        def test_xfailed_assertion(self):
            assert self.rank == 0


    class TestProcesses(Processes, testing.MultiProcessTestCase):
        pass


    class TestProcessesOfTorch(Processes, of_torch.MultiProcessTestCase):
        pass


    class TestTearDown(of_torch.MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def tearDown(self):
            super().tearDown()
            raise ValueError("only in the main process")

        def test_red_passes_in_its_ranks(self):
            pass


    class Kept:
        world_size = 2

        def test_1_red_skipped_by_one(self):
            if self.rank == 1:
                raise unittest.SkipTest("not me")

        def test_2_red_fails_after_a_skip(self):
            if self.rank == 0:
                raise unittest.SkipTest("not me")
            raise ValueError("me")

        def test_3_passed_in_new_ranks(self):
            dist.barrier()

        def test_4_red_fails_before_a_skip(self):
            if self.rank == 1:
                raise unittest.SkipTest("not me")
            raise ValueError("me")


    class TestKept(Kept, testing.MultiProcContinuousTest):
        pass


    class TestKeptOfTorch(Kept, of_torch.MultiProcContinuousTest):
        pass
"""


@pytest.fixture(scope="module")
def ended(module_lab):
    return module_lab.write(test_ends=SUITE).run("test_ends.py")


@pytest.fixture(scope="module")
def lenient(module_lab, ended):
    arguments = (
        "--disttest-host",
        "test_ends.py",
        "-q",
        "-k",
        "Kept or Decorated",
        "--disttest-verdict=torch",
    )
    return module_lab.pytest(*arguments, results="lenient")


def test_every_end_is_what_its_name_says(ended):
    found = {test.test.nodeid: test.final.outcome for test in ended.run.tests}

    wrong = {
        nodeid: outcome
        for nodeid, outcome in found.items()
        if (outcome.is_bad != ("_red_" in nodeid))
        or (not outcome.is_bad and f"_{outcome.value}_" not in nodeid)
    }
    assert {} == wrong
    assert 47 == len(found)


@pytest.mark.parametrize("case", ["TestThreads", "TestThreadsOfTorch"])
def test_the_thread_and_its_end_are_named(ended, case):
    text, code, interrupt, skip = (
        ended.result(f"{case}::test_red_{name}")
        for name in ("exits_with_a_text", "exits_with_a_code", "is_interrupted", "skipped_by_one")
    )

    assert (1, "fatal" in text.message) == (text.culprit, True)
    assert (1, "3" in code.message) == (code.culprit, True)
    assert (1, "KeyboardInterrupt" in interrupt.message) == (interrupt.culprit, True)
    assert "rank 1 skipped" in skip.message


def test_torchs_rule_is_recorded(ended):
    result = ended.result("TestThreadsOfTorch::test_red_exits_with_a_code")

    assert Outcome.PASSED is result.torch_outcome
    assert "torch's own rules would have passed this test" in result.notes


def test_a_failure_of_the_main_process_fails_by_torchs_rules_too(ended):
    assert Outcome.FAILED is ended.result("test_red_passes_in_its_ranks").torch_outcome


def test_torchs_rule_for_ranks_that_stay(ended, lenient):
    expected = {
        "1_red_skipped_by_one": Outcome.SKIPPED,
        "2_red_fails_after_a_skip": Outcome.SKIPPED,
        "3_passed_in_new_ranks": Outcome.PASSED,
        "4_red_fails_before_a_skip": Outcome.FAILED,
    }
    names = {f"{case}::test_{name}": name for case in ("TestKept", "TestKeptOfTorch") for name in expected}

    assert {} == {
        nodeid: found
        for nodeid, name in names.items()
        if (found := (ended.result(nodeid).torch_outcome, lenient.result(nodeid).outcome))
        != (expected[name], expected[name])
    }


def test_threads_of_ordinary_tests_are_judged_as_ranks(ended, lenient):
    for case in ("TestDecorated", "TestDecoratedOfTorch"):
        code, skip = f"{case}::test_red_exits_with_a_code", f"{case}::test_red_skipped_by_one"

        assert "rank 1: SystemExit: 1" in ended.result(code).message
        assert "rank 1 skipped" in ended.result(skip).message
        assert lenient.result(skip).outcome is Outcome.SKIPPED
    assert lenient.result("TestDecoratedOfTorch::test_red_exits_with_a_code").outcome is Outcome.PASSED


@pytest.mark.parametrize("signal", ["SIGABRT", "SIGSEGV"])
def test_an_uncaught_exception_of_cpp_is_named_though_the_dump_of_stacks_crashed(lab, signal):
    """faulthandler reads the frames of threads that run on, and may crash while it handles the SIGABRT."""
    lab.write(
        test_mine=f"""
        import os
        import signal

        import pytest

        @pytest.mark.world_size(1)
        def test_aborts(world):
            text = "terminate called after throwing an instance of 'c10::DistBackendError'\\n  what():  NCCL is gone\\n"
            os.write(2, text.encode())
            signal.signal(signal.{signal}, signal.SIG_DFL)
            os.kill(os.getpid(), signal.{signal})
        """
    )
    result = lab.run("run", "test_mine.py").result("test_aborts")

    how = f"rank 0 of 1 was killed by {signal} in call, before it reported"
    assert result.message == f"{how}: c10::DistBackendError: NCCL is gone"
