"""Which ranks a failed wait was for, by what all ranks had called then."""

import pytest
from board_actors import Stage, group_of

from disttest.plugins.deadlock.in_rank import find_awaited

ALL, PAIR = group_of(0, 1, 2), group_of(0, 2, name="7", description="")


@pytest.fixture
def stage():
    return Stage(3)


def awaited(stage, call, waiter=0):
    return find_awaited({rank: stage.snapshot(rank) for rank in range(3)}, waiter, call)


def test_members_that_have_not_made_a_collective_are_awaited(stage):
    for actor in stage.ranks:
        actor.call("allreduce", ALL)
    call = stage.ranks[0].call("allreduce", ALL)
    stage.ranks[1].call("allreduce", ALL)

    assert awaited(stage, call) == (2,)


def test_ranks_outside_the_group_are_not_awaited(stage):
    assert awaited(stage, stage.ranks[0].call("allreduce", PAIR)) == (2,)


def test_a_rank_that_needs_the_root_alone_awaits_the_root_alone(stage):
    assert awaited(stage, stage.ranks[0].call("scatter", ALL, root=1)) == (1,)


def test_the_other_side_of_a_message_is_awaited_until_it_has_made_its_call(stage):
    first = stage.ranks[0].call("recv", ALL, peer=1)
    stage.ranks[1].call("send", ALL, peer=0)
    second = stage.ranks[0].call("recv", ALL, peer=1)
    sent = stage.ranks[0].call("send", ALL, peer=2)

    assert (awaited(stage, first), awaited(stage, second), awaited(stage, sent)) == ((), (1,), (2,))


def test_nothing_is_said_if_a_board_is_incomplete(stage):
    call = stage.ranks[0].call("allreduce", ALL)
    stage.ranks[1].tool.begin(has_gap=True)

    assert awaited(stage, call) == ()
