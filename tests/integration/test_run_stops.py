"""A test in a rank that ends the run: the reason, the rank and the line are reported, and the run ends with its code."""

import pytest
from lab import Ended, Lab

from disttest.model import Outcome

pytestmark = pytest.mark.forked_runs

HEAD = """
    import os, sys, unittest
    import pytest, torch, torch.distributed as dist

    def stop(rank=1, code=77):
        pytest.exit("the fabric is down", returncode=code)
"""
NEXT = """
    @pytest.mark.world_size(2)
    def test_next(world):
        dist.barrier()

    def test_ordinary_next():
        pass
"""
CALL = """
    @pytest.mark.world_size(2)
    def test_stops(world):
        if world.rank == 1:
            stop()
        dist.barrier()
"""
SETUP = """
    @pytest.fixture
    def fabric(world):
        if world.rank == 1:
            stop()

    @pytest.mark.world_size(2)
    def test_stops(fabric):
        dist.barrier()
"""
TEARDOWN = """
    @pytest.fixture
    def fabric(world):
        yield
        if world.rank == 1:
            stop()

    @pytest.mark.world_size(2)
    def test_stops(fabric):
        pass
"""
INTERRUPT = """
    @pytest.mark.world_size(2)
    def test_stops(world):
        if world.rank == 1:
            raise KeyboardInterrupt("the fabric is down")
        dist.barrier()
"""
EXPECTED = """
    @pytest.mark.xfail
    @pytest.mark.world_size(2)
    def test_stops(world):
        if world.rank == 1:
            stop()
"""
NO_CODE = """
    @pytest.mark.world_size(2)
    def test_stops(world):
        if world.rank == 1:
            stop(code=None)
"""
METHOD = """
    class Test(unittest.TestCase):
        @pytest.fixture(autouse=True)
        def prepare(self, world):
            self.world = world

        @pytest.mark.world_size(2)
        def test_stops(self):
            if self.world.rank == 1:
                stop()
            dist.barrier()
"""
TORCHS = """
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class Test(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_stops(self):
            if self.rank == 1:
                stop()
"""
SUITE = """
    @pytest.fixture(scope="session", autouse=True)
    def group():
        dist.init_process_group("gloo")
        yield
        dist.destroy_process_group()

    def test_stops():
        if dist.get_rank() == 1:
            stop()
        dist.barrier()

    def test_next():
        dist.barrier()
"""
ORDINARY = """
    def test_stops():
        stop()

    def test_next():
        pass
"""
CASES = {
    "call": (CALL + NEXT, (), 77),
    "call, retries and -x": (CALL + NEXT, ("--retries", "2", "-x"), 77),
    "warm": (NEXT.replace("next", "before") + CALL + NEXT, ("--isolation", "warm"), 77),
    "setup": (SETUP + NEXT, (), 77),
    "teardown": (TEARDOWN + NEXT, (), 77),
    "KeyboardInterrupt": (INTERRUPT + NEXT, (), 2),
    "xfail": (EXPECTED + NEXT, (), 77),
    "no code": (NO_CODE + NEXT, (), 2),
    "unittest": (METHOD + NEXT, (), 77),
    "torch's class": (TORCHS + NEXT, (), 77),
    "--spmd": (SUITE, ("--spmd", "2"), 77),
    "ordinary": (ORDINARY, (), 77),
    "--isolate-files": (ORDINARY, ("--isolate-files",), 77),
}


@pytest.mark.parametrize("name", CASES)
def test_a_test_ends_the_run_with_the_code_that_it_asks_for(lab: Lab, name):
    source, options, code = CASES[name]
    ended = lab.write(test_stop=HEAD + source).run(
        "run", "test_stop.py", "--results", "results", "--slots", "2", *options
    )
    stopped = ended.result("test_stops")

    assert ended.exit_code == ended.run.exit_code == code, ended.output
    assert stopped.outcome.is_bad
    assert stopped.cause == "test"
    assert "the fabric is down" in stopped.message
    assert "test_stop.py" in stopped.details
    assert stopped.attempt == 1
    if name not in ("ordinary", "--isolate-files"):
        assert stopped.culprit == 1
        assert stopped.message.startswith("rank 1 of 2 failed")
        assert "rank 1: " in ended.run.reason or name == "torch's class"
    assert "the fabric is down (test_stop.py:" in ended.run.reason
    assert {test.final.outcome for test in ended.run.tests if "next" in test.test.nodeid} == {Outcome.NOT_RUN}


def test_the_first_of_several_ranks_decides(lab: Lab):
    source = """
    @pytest.mark.world_size(2)
    def test_stops(world):
        if world.rank == 0:
            dist.recv(torch.ones(1), 1)
            stop(code=70)
        try:
            stop(code=71)
        finally:
            world.rank and dist.send(torch.ones(1), 0)
    """
    ended = lab.write(test_stop=HEAD + source).run("run", "test_stop.py", "--results", "results")

    assert ended.exit_code in (70, 71)
    assert "the fabric is down" in ended.run.reason


def test_plain_pytest_ends_with_the_code_too(lab: Lab):
    ended = lab.write(test_stop=HEAD + CALL + NEXT).pytest("test_stop.py")

    assert ended.exit_code == 77
    assert "rank 1: Exit: the fabric is down (test_stop.py:" in ended.output


def test_leaving_python_is_a_failure_of_the_test_and_the_run_goes_on(lab: Lab):
    source = """
    @pytest.mark.world_size(2)
    def test_exit(world):
        if world.rank == 1:
            sys.exit(0)
        dist.barrier()

    @pytest.mark.world_size(2)
    def test_hard_exit(world):
        if world.rank == 1:
            os._exit(0)
        dist.barrier()
    """
    ended: Ended = lab.write(test_stop=HEAD + source + NEXT).run(
        "run", "test_stop.py", "--results", "results"
    )

    assert ended.exit_code == 1
    assert ended.result("test_exit").message == "rank 1 of 2 failed: SystemExit: 0"
    assert ended.result("test_hard_exit").message.startswith("rank 1 of 2 exited with code 0 in call")
    assert ended.result("test_next").outcome is Outcome.PASSED
