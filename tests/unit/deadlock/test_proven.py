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
    what="all_reduce #3 of group default",
    where="test_x.py:12",
    since_s=1.24,
    ranks=(1,),
    reason="which has finished the test",
)
DEADLOCK = Deadlock(kind=DeadlockKind.FINISHED, edges=(EDGE,), finished=(1,), ended=True)
MESSAGE = (
    "deadlock: no rank can go on: rank 0 waits in all_reduce #3 of group default at test_x.py:12 since 1.2 s for rank 1, "
    "which has finished the test"
)
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


def test_who_waits_in_what_for_whom_where_and_since_when():
    cause = cause_of(DEADLOCK)

    assert (cause.message, cause.culprit) == (MESSAGE, 1)


def test_of_many_ranks_the_first_are_told():
    edges = tuple(msgspec.structs.replace(EDGE, rank=rank) for rank in range(20))

    message = cause_of(msgspec.structs.replace(DEADLOCK, edges=edges)).message

    assert message.count("waits in") == 8
    assert message.endswith("; …")


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
