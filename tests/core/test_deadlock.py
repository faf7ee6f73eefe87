"""Deadlocks of real ranks are proven within a second or so, and what only looks like one is left alone."""

import pytest
from lab import Ended, Lab

from disttest.model import Outcome
from disttest.plugins.deadlock.proven import DeadlockKind, proof_of

HANGS = """
    import pytest, torch, torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from disttest.testing import expect_deadlock

    pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(100)]

    def reduce(group=None):
        dist.all_reduce(torch.ones(2), group=group)

    def test_finished(world):
        if world.is_first:
            reduce()

    def test_follows(world):
        reduce()

    def test_mismatch(world):
        reduce() if world.is_first else dist.barrier()

    def test_roots(world):
        dist.broadcast(torch.ones(2), world.rank)

    def test_groups(world):
        groups = [dist.new_group(), dist.new_group()]
        reduce(groups[world.rank])

    def test_cycle(world):
        reduce() if world.is_first else dist.recv(torch.ones(2), 0)

    def test_messages(world):
        dist.send(torch.ones(2), 1 - world.rank)

    def test_store(world):
        if world.is_first:
            dist.distributed_c10d._get_default_store().get("never")

    def test_alone(world):
        if world.is_first:
            dist.new_group([0, 1], use_local_synchronization=True)

    def test_backward(world):
        model = DistributedDataParallel(nn.Linear(2, 2))
        loss = model(torch.ones(1, 2)).sum()
        if world.is_first:
            loss.backward()

    @pytest.mark.xfail
    def test_xfail(world):
        dist.recv(torch.ones(2), 1 - world.rank)

    def test_expected(world):
        with expect_deadlock(match="recv #1 from rank"):
            dist.recv(torch.ones(2), 1 - world.rank)

    def test_expected_of_one(world):
        if world.is_first:
            with expect_deadlock():
                reduce()

    def test_expected_in_other_words(world):
        with expect_deadlock(match="barrier"):
            dist.recv(torch.ones(2), 1 - world.rank)

    def test_expected_in_vain(world):
        with expect_deadlock():
            reduce()
"""


@pytest.fixture(scope="module")
def ended(module_lab) -> Ended:
    module_lab.write(test_hangs=HANGS)
    return module_lab.run("run", "test_hangs.py", "--slots", "4", limit_s=300)


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("finished", DeadlockKind.FINISHED, "for rank 1, which has finished the test"),
        ("mismatch", DeadlockKind.MISMATCH, "; rank 1 called barrier #1 instead ("),
        ("roots", DeadlockKind.ROOTS, "for rank 1, which has called it with root 1 instead of 0"),
        ("groups", DeadlockKind.GROUPS, "rank 1 waits in all_reduce #1 of group "),
        ("cycle", DeadlockKind.CYCLE, "rank 1 waits in recv #1 from rank 0"),
        ("messages", DeadlockKind.POINT_TO_POINT, "rank 0 waits in send #1 to rank 1"),
        ("store", DeadlockKind.STORE, "rank 0 waits in key 'never' of a store"),
        ("alone", DeadlockKind.ALONE, "rank 0 waits in new_group(0-1)"),
        ("backward", DeadlockKind.FINISHED, "rank 0 waits in all_reduce #"),
        ("xfail", DeadlockKind.POINT_TO_POINT, "rank 0 waits in recv"),
    ],
)
def test_a_hang_of_each_kind_is_proven(ended, name, kind, says):
    result = ended.result(f"test_{name}")

    assert result.outcome is Outcome.FAILED, ended.output
    assert result.message.startswith("deadlock: rank"), result.message
    assert says in result.message
    assert "test_hangs.py:" in result.message
    assert proof_of(result).kind is kind
    assert proof_of(result).ended
    assert result.details, "what to do"


def test_the_next_test_runs_in_a_new_world(ended):
    assert ended.result("test_follows").outcome is Outcome.PASSED


@pytest.mark.parametrize("name", ["expected", "expected_of_one"])
def test_a_test_that_expects_it_passes(ended, name):
    result = ended.result(f"test_{name}")

    assert result.outcome is Outcome.PASSED, result.message
    assert any(note.startswith("deadlock: ") for note in result.notes)


def test_an_expectation_in_other_words_fails(ended):
    assert ended.result("test_expected_in_other_words").message.startswith("deadlock: ")


def test_an_expectation_without_a_deadlock_fails(ended):
    assert "AssertionError: no deadlock" in ended.result("test_expected_in_vain").message


def test_it_is_told_again(ended):
    assert "deadlock: rank" in ended.output
    assert "deadlock" in ended.junit().find(".//testcase[@name='test_finished[2xgloo]']/failure").get(
        "message"
    )


SHORT = """
    import pytest, torch, torch.distributed as dist
    from disttest.testing import expect_deadlock

    pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(6)]

    def test_hangs(world):
        dist.recv(torch.ones(2), 1 - world.rank)

    def test_expects(world):
        with expect_deadlock():
            dist.recv(torch.ones(2), 1 - world.rank)
"""


@pytest.mark.parametrize(
    ("rule", "says", "expects"),
    [
        ("report", "deadlock: rank", Outcome.PASSED),
        ("off", "point-to-point calls that do not match: ", Outcome.SKIPPED),
    ],
)
def test_other_rules(lab: Lab, nothing_left, rule, says, expects):
    lab.write(test_short=SHORT)

    ended = lab.run("run", "test_short.py", "--deadlock", rule)

    hung = ended.result("test_hangs")
    assert hung.message.startswith(says)
    assert hung.message.endswith("(timed out after 6 s)")
    assert ended.result("test_expects").outcome is expects


HOSTED = """
    import time, torch, torch.distributed as dist
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class Hosted(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def join(self):
            store = dist.FileStore(self.file_name, self.world_size)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

        def test_hangs(self):
            self.join()
            dist.recv(torch.ones(2), 1 - self.rank)

        def test_passes(self):
            self.join()
            dist.all_reduce(torch.ones(2))
"""


def test_ranks_of_torchs_own_classes(lab: Lab, nothing_left):
    lab.write(test_hosted=HOSTED)

    ended = lab.run("run", "test_hosted.py", "--timeout", "60")

    hung = ended.result("test_hangs")
    assert "deadlock: rank 0 waits in recv" in hung.message, hung.message
    assert proof_of(hung).kind is DeadlockKind.POINT_TO_POINT
    assert ended.result("test_passes").outcome is Outcome.PASSED
