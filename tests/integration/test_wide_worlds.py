"""Worlds that gloo does not connect when they start: failures are found and named as in any other world."""

from __future__ import annotations

import re

import pytest
from lab import Ended, Lab

from disttest.model import Outcome
from disttest.plugins.deadlock.proven import DeadlockKind, proof_of
from disttest.plugins.wide_worlds.hooks import MOST_CONNECTED

WIDE = f"""
    import os
    import signal

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size({MOST_CONNECTED + 1})

    def test_connects_lazily(world):
        assert os.environ["TORCH_GLOO_LAZY_INIT"] == "1"
        ones = torch.ones(2)
        dist.all_reduce(ones)
        assert ones[0] == world.size

    def test_leaves_a_rank_out(world):
        if world.rank != 7:
            dist.all_reduce(torch.ones(2))

    def test_loses_a_rank(world):
        if world.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
"""
SENDS = """
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.world_size(8)
    def test_receivers_leave(world):
        if world.rank % 2:
            dist.send(torch.ones(1), world.rank - 1)

    @pytest.mark.world_size(8)
    def test_all_send_before_they_receive(world):
        sent = dist.isend(torch.ones(1), (world.rank + 1) % world.size)
        dist.recv(torch.ones(1), (world.rank - 1) % world.size)
        sent.wait()
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return Lab(tmp_path_factory.mktemp("wide")).write(test_wide=WIDE).run("test_wide.py")


def test_a_large_world_connects_lazily(ended: Ended) -> None:
    result = ended.result("test_connects_lazily")

    assert result.outcome is Outcome.PASSED, result.message


def test_a_rank_that_dies_there_is_named(ended: Ended) -> None:
    result = ended.result("test_loses_a_rank")

    assert (Outcome.ERROR, 3) == (result.outcome, result.culprit)
    assert f"rank 3 of {MOST_CONNECTED + 1} was killed by SIGKILL in call, before it reported" == (
        result.message
    )


def test_a_deadlock_there_is_proven_in_a_message_about_equal_ranks(ended: Ended) -> None:
    result = ended.result("test_leaves_a_rank_out")

    assert re.fullmatch(
        rf"deadlock: ranks 0-6, 8-{MOST_CONNECTED} wait in all_reduce #\d \(test_wide.py:\d+\) for rank 7, which has finished "
        "the test",
        result.message,
    ), result.message


def test_equal_stacks_are_shown_once(ended: Ended) -> None:
    assert 1 == ended.output.count(f"stacks of ranks 0-6, 8-{MOST_CONNECTED}:")


@pytest.mark.parametrize(
    ("report", "most_kib"), [("summary.md", 64), ("junit.xml", 256), ("report.html", 1024)]
)
def test_reports_stay_small(ended: Ended, report: str, most_kib: int) -> None:
    assert (ended.results / report).stat().st_size <= most_kib * 1024


def test_a_send_that_waits_for_a_connection_is_a_proven_deadlock(lab: Lab) -> None:
    # In half of the pairs, chosen by the addresses, the send already waits for its connection.
    ended = lab.write(test_sends=SENDS).run("test_sends.py", TORCH_GLOO_LAZY_INIT="1")

    hung = ended.result("test_receivers_leave")
    proof = proof_of(hung)
    assert proof is not None, hung.message
    assert proof.kind is DeadlockKind.FINISHED
    assert [1, 3, 5, 7] == [edge.rank for edge in proof.edges]
    assert ended.result("test_all_send_before_they_receive").outcome is Outcome.PASSED
