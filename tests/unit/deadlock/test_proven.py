"""What is said of a proven deadlock."""

from __future__ import annotations

import msgspec
import pytest

from disttest.model import Edge, Outcome, RankEnd, RankRecord
from disttest.model import TestCase as Case
from disttest.plugins.deadlock.proven import Deadlock, DeadlockKind, cause_of, proof_of
from disttest.results.narrative import how_failed
from disttest.results.verdict import judge

EDGE = Edge(
    rank=0,
    what="all_reduce #3",
    where="test_x.py:12",
    since_s=1.24,
    ranks=(1,),
    reason="which has finished the test",
)
DEADLOCK = Deadlock(kind=DeadlockKind.FINISHED, edges=(EDGE,), finished=(1,), ended=True)
MESSAGE = "deadlock: rank 0 waits in all_reduce #3 (test_x.py:12) for rank 1, which has finished the test"
CASE = Case(nodeid="t", slug="t", classname="", name="t", file="t.py", line=1, suite="t", timeout_s=300.0)


def verdict(deadlock, *, hung=True):
    waits = RankRecord(
        rank=0,
        end=RankEnd.KILLED,
        phase="call",
        hung=hung,
        ended_for="deadlock" if deadlock.ended else "",
        outcome=None if hung else Outcome.PASSED,
    )
    done = RankRecord(rank=1, end=RankEnd.REPORTED, phase="call", outcome=Outcome.PASSED)
    return judge(
        CASE,
        [waits, done],
        attempt=1,
        started_at_s=0.0,
        duration_s=2.0,
        world_id="w1",
        cause=cause_of(deadlock),
    )


def edge(rank, what, where, ranks, reason="", *, group="default", seq=1):
    return Edge(
        rank=rank, what=what, where=where, since_s=1.0, ranks=ranks, reason=reason, group=group, seq=seq
    )


def message(kind, *edges):
    return cause_of(Deadlock(kind=kind, edges=edges)).message


def test_the_message_names_the_ranks_their_calls_and_the_rank_they_wait_for():
    cause = cause_of(DEADLOCK)

    assert (cause.message, cause.culprit) == (MESSAGE, 1)


def test_equal_ranks_share_a_part_and_the_odd_rank_comes_last():
    instead = "which has called {} in its place"
    odd = edge(0, "barrier #1", "a.py:14", (1,), instead.format("all_reduce"))
    rest = [edge(rank, "all_reduce #1", "a.py:13", (0,), instead.format("barrier")) for rank in range(1, 256)]

    assert message(DeadlockKind.MISMATCH, odd, *rest) == (
        "deadlock: ranks 1-255 wait in all_reduce #1 (a.py:13); rank 0 called barrier #1 instead (a.py:14)"
    )


def test_a_call_that_its_rank_has_left_behind_keeps_its_line():
    went_on = "which has called barrier in its place at a.py:5"

    assert message(
        DeadlockKind.MISMATCH,
        edge(0, "all_reduce #1", "a.py:8", (1,), went_on),
        edge(1, "all_gather #2", "a.py:9", (0,), seq=2),
    ) == (
        "deadlock: rank 0 waits in all_reduce #1 (a.py:8) for rank 1, which has called barrier in its place at a.py:5; "
        "rank 1 waits in all_gather #2 (a.py:9)"
    )


def test_ranks_with_different_sizes_are_told_apart():
    def other(mine, theirs):
        return f"which has called it with float32[{theirs}] instead of float32[{mine}]"

    assert message(
        DeadlockKind.MISMATCH,
        edge(0, "all_reduce #1", "a.py:8", (2,), other(2, 3)),
        edge(1, "all_reduce #1", "a.py:8", (2,), other(2, 3)),
        edge(2, "all_reduce #1", "a.py:8", (0,), other(3, 2)),
    ) == (
        f"deadlock: ranks 0, 1 wait in all_reduce #1 (a.py:8) for rank 2, {other(2, 3)}; "
        f"rank 2 waits in all_reduce #1 (a.py:8) for rank 0, {other(3, 2)}"
    )


def test_ranks_that_wait_for_each_other_are_not_named_twice():
    assert message(
        DeadlockKind.GROUPS,
        edge(0, "all_reduce #1 of group a", "a.py:1", (1,), group="a"),
        edge(1, "all_reduce #1 of group b", "a.py:2", (0,), group="b"),
    ) == (
        "deadlock: rank 0 waits in all_reduce #1 of group a (a.py:1); "
        "rank 1 waits in all_reduce #1 of group b (a.py:2)"
    )


def test_many_different_waits_are_cut():
    edges = [edge(rank, f"recv #1 from rank {rank + 1}", "a.py:3", ((rank + 1) % 20,)) for rank in range(20)]

    text = message(DeadlockKind.CYCLE, *edges)

    assert text.count("waits in") == 8
    assert text.endswith("; …")


def test_nobody_is_to_blame_for_a_cycle():
    assert cause_of(msgspec.structs.replace(DEADLOCK, kind=DeadlockKind.GROUPS)).culprit is None


@pytest.mark.parametrize("kind", DeadlockKind)
def test_what_to_do_is_said_of_every_kind(kind):
    assert cause_of(msgspec.structs.replace(DEADLOCK, kind=kind)).advice


def test_a_test_that_was_ended_for_it():
    result = verdict(DEADLOCK)

    assert (result.outcome, result.message, result.culprit) == (Outcome.FAILED, MESSAGE, 1)
    assert result.details == cause_of(DEADLOCK).advice
    assert proof_of(result) == DEADLOCK
    assert how_failed(result) == "deadlock"
    assert not result.notes


def test_a_test_that_went_on_to_its_limit():
    result = verdict(msgspec.structs.replace(DEADLOCK, ended=False))

    assert result.message == f"{MESSAGE} (timed out after 300 s)"
    assert how_failed(result) == "timed out"


def test_a_test_that_went_on_and_passed_has_a_note():
    result = verdict(msgspec.structs.replace(DEADLOCK, ended=False), hung=False)

    assert (result.outcome, result.notes) == (Outcome.PASSED, (MESSAGE,))
