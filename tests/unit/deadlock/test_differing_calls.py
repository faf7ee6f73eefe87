"""Which ranks brought which tensors to the call that a backend has aborted one of them for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from board_actors import Stage, group_of

from disttest.plugins.deadlock import layout
from disttest.plugins.deadlock.differing_calls import (
    describe_differing_calls,
    find_odd_rank,
    waits_in_differing_call,
)

ALL = group_of(0, 1, 2)


def tensor(*shape, dtype="torch.float32"):
    return SimpleNamespace(dtype=dtype, shape=shape)


@pytest.fixture
def stage():
    return Stage(3)


def told(stage, aborted=1):
    return describe_differing_calls({rank: stage.snapshot(rank) for rank in range(3)}, aborted)


def test_ranks_are_told_with_their_tensors_at_the_first_call_that_differs(stage):
    for actor in stage.ranks:
        actor.done(actor.do("allreduce", ALL, inputs=(tensor(2),)))
        actor.call("allreduce", ALL, inputs=(tensor(8 if actor.rank == 1 else 4),))

    assert told(stage) == (
        "ranks disagree at collective #2 of group default: "
        "ranks 0, 2 called all_reduce of float32[4], rank 1 called all_reduce of float32[8]"
    )


def test_an_all_to_all_that_was_aborted_is_told_with_the_tensors_of_all_and_has_no_odd_rank(stage):
    for actor in stage.ranks:
        actor.done(actor.do("alltoall_base", ALL, inputs=(tensor(actor.rank + 1),)))
        actor.call("alltoall_base", ALL, inputs=(tensor(6 if actor.rank == 1 else 4),))

    assert told(stage) == (
        "ranks disagree at collective #2 of group default: "
        "ranks 0, 2 called all_to_all_single of float32[4], rank 1 called all_to_all_single of float32[6]"
    )
    assert odd_rank(stage, 1) is None


def test_an_all_to_all_before_the_aborted_call_may_be_uneven(stage):
    for actor in stage.ranks:
        actor.done(actor.do("alltoall_base", ALL, inputs=(tensor(actor.rank + 1),)))
        actor.call("allreduce", ALL, inputs=(tensor(4),))

    assert told(stage) == ""


def test_a_message_that_did_not_fit_is_told_with_both_tensors(stage):
    for sender in (0, 2):  # one from another rank fits
        stage.ranks[sender].do("send", ALL, peer=1, inputs=(tensor(6),))
    stage.ranks[1].done(stage.ranks[1].do("recv", ALL, peer=2, outputs=(tensor(6),)))
    stage.ranks[1].do("recv", ALL, peer=0, outputs=(tensor(5),))

    assert told(stage) == (
        "ranks disagree at recv #1 of rank 1: rank 0 sent float32[6], rank 1 receives float32[5]"
    )
    assert odd_rank(stage, 1) is None


def test_a_crash_counts_inside_of_the_call_that_differs_only(stage):
    for actor in stage.ranks:
        actor.done(actor.do("allreduce", ALL, inputs=(tensor(actor.rank + 1),)))
        actor.do("broadcast", ALL, root=1, inputs=(tensor(4),))
    snapshots = {rank: stage.snapshot(rank) for rank in range(3)}
    assert not waits_in_differing_call(snapshots, 0)

    stage.ranks[2].do("reduce", ALL, root=1, inputs=(tensor(9),))
    for actor in stage.ranks[:2]:
        actor.do("reduce", ALL, root=1, inputs=(tensor(4),))
    snapshots = {rank: stage.snapshot(rank) for rank in range(3)}
    assert waits_in_differing_call(snapshots, 0)


def test_a_scatter_has_tensors_where_it_starts_only(stage):
    stage.ranks[0].call("scatter", ALL, root=0, inputs=(tensor(2), tensor(2)), outputs=(tensor(2),))
    for actor in stage.ranks[1:]:
        actor.call("scatter", ALL, root=0, outputs=(tensor(2),))

    assert told(stage) == ""


def odd_rank(stage, aborted):
    return find_odd_rank({rank: stage.snapshot(rank) for rank in range(3)}, aborted)


@pytest.mark.parametrize("aborted", range(3))
def test_the_rank_that_differs_from_all_others_is_the_odd_one_whichever_was_aborted(stage, aborted):
    for actor in stage.ranks:
        actor.call("allreduce", ALL, inputs=(tensor(8 if actor.rank == 1 else 4),))

    assert odd_rank(stage, aborted) == 1


def test_there_is_no_odd_rank_if_all_differ_or_only_two_have_called(stage):
    for actor in stage.ranks[:2]:
        actor.call("allreduce", ALL, inputs=(tensor(actor.rank + 1),))
    assert odd_rank(stage, 0) is None

    stage.ranks[2].call("allreduce", ALL, inputs=(tensor(3),))
    assert odd_rank(stage, 0) is None


def test_a_peer_that_went_on_is_told_with_what_it_had_called(stage):
    for actor in stage.ranks:
        actor.do("broadcast", ALL, root=0, inputs=(tensor(8 if actor.rank == 0 else 4),))
    stage.ranks[0].do("allreduce", ALL, inputs=(tensor(1),))

    assert "collective #1 of group default: rank 0 called broadcast of float32[8], ranks 1, 2 called" in told(
        stage
    )


def test_other_calls_at_one_number_are_told(stage):
    stage.ranks[0].do("allreduce", ALL, inputs=(tensor(4),))
    stage.ranks[1].do("broadcast", ALL, inputs=(tensor(8),), root=1)

    assert "rank 0 called all_reduce of float32[4], rank 1 called broadcast of float32[8]" in told(stage)


def test_shapes_leave_space_for_what_proofs_are_made_of(stage):
    actor = stage.ranks[1]
    for size in range(layout.SLOT):
        actor.done(actor.do("allreduce", ALL, inputs=(tensor(size),)))
    actor.do("broadcast", ALL, root=0)

    snapshot = stage.snapshot(1)
    assert ("broadcast", False) == (snapshot.waits[0].op, snapshot.has_gap)
    assert told(stage) == ""
