"""The board: what a rank writes there is what is read, and whatever a broken one writes can be read."""

from __future__ import annotations

import random

import pytest
from board_actors import Stage, group_of
from hypothesis import example, given
from hypothesis import strategies as st

from disttest.observe import Site, Wait, WaitKind
from disttest.plugins.deadlock import layout
from disttest.plugins.deadlock.layout import Direction
from disttest.plugins.deadlock.proof import Situation, find_deadlock
from disttest.plugins.deadlock.proven import cause_of
from disttest.plugins.deadlock.snapshot import Counts, GroupKey, Snapshot, read_slot

ALL = group_of(0, 1)
KEY = GroupKey(name="0", ranks=(0, 1))


@pytest.fixture
def stage():
    return Stage(2)


@pytest.fixture
def actor(stage):
    return stage.ranks[1]


def test_a_slot_that_nobody_has_written():
    assert read_slot(bytes(layout.SLOT)) == Snapshot(rank=-1)


def test_a_rank_says_that_it_is_observed(stage):
    assert stage.snapshot(1) == Snapshot(is_observed=True)


def test_a_collective(stage, actor):
    actor.do("broadcast", ALL, root=1)

    found = stage.snapshot(1)
    assert found.groups[KEY].issued == 1
    assert (found.groups[KEY].calls[1].op, found.groups[KEY].calls[1].root) == ("broadcast", 1)
    (wait,) = found.waits
    assert (wait.kind, wait.op, wait.group, wait.seq, wait.root, wait.peer) == (
        WaitKind.WORK,
        "broadcast",
        KEY,
        1,
        1,
        None,
    )
    assert stage.snapshot(0) == Snapshot(is_observed=True)


def test_who_comes_back_does_not_wait(stage, actor):
    actor.done(actor.do("allreduce", ALL))

    assert stage.snapshot(1).waits == ()
    assert stage.snapshot(1).groups[KEY].issued == 1


def test_a_wait_within_a_wait(stage, actor):
    outer = actor.wait(kind=WaitKind.BACKWARD)
    inner = actor.do("allreduce", ALL)

    assert [wait.kind for wait in stage.snapshot(1).waits] == [WaitKind.WORK]
    actor.done(inner)
    assert [wait.kind for wait in stage.snapshot(1).waits] == [WaitKind.BACKWARD]
    actor.done(outer)
    assert stage.snapshot(1).waits == ()


def test_cpp_issues_within_a_backward_pass(stage, actor):
    engine = actor.wait(kind=WaitKind.BACKWARD)
    actor.call("allreduce", ALL, by_cpp=True)

    assert [(wait.op, wait.in_cpp) for wait in stage.snapshot(1).waits] == [("allreduce", True)]
    actor.done(engine)
    assert stage.snapshot(1).waits == ()


def test_a_call_from_python_shows_that_the_thread_is_back_from_cpp(stage, actor):
    actor.call("allreduce", ALL, by_cpp=True)
    actor.call("allreduce", ALL)

    assert stage.snapshot(1).waits == ()


def test_point_to_point_calls(stage, actor):
    actor.done(actor.do("send", ALL, peer=0, tag=7))
    actor.call("send", ALL, peer=0, tag=7)

    assert stage.snapshot(1).channels == {(KEY, Direction.SEND, 0, 7): Counts(issued=2, done=1)}


def test_two_threads(stage, actor):
    actor.do("allreduce", ALL, thread=1)
    actor.wait(kind=WaitKind.STORE, keys=("a", "b"), thread=2)

    assert [(wait.thread, wait.keys) for wait in stage.snapshot(1).waits] == [(1, ""), (2, "a, b")]


def test_a_test_begins(stage, actor):
    late = actor.do("allreduce", ALL)
    actor.tool.begin(has_gap=False)

    assert stage.snapshot(1) == Snapshot(is_observed=True)
    actor.done(late)
    assert stage.snapshot(1) == Snapshot(is_observed=True)


def test_what_the_layer_does_not_see_is_a_gap(stage, actor):
    actor.tool.begin(has_gap=True)

    assert stage.snapshot(1).has_gap


def test_a_group_is_made_anew_under_its_name(stage, actor):
    actor.call("allreduce", ALL)
    actor.call("send", ALL, peer=0)
    actor.tool.on_group(ALL, made=False)

    assert (stage.snapshot(1).groups, stage.snapshot(1).channels) == ({}, {})


@pytest.mark.parametrize("full", ["threads", "groups", "channels", "texts"])
def test_more_than_fits_is_a_gap(stage, actor, full):
    for number in range(400):
        if full == "threads":
            actor.do("allreduce", ALL, thread=number)
        elif full == "groups":
            actor.call("allreduce", group_of(0, 1, name=f"{number}"))
        elif full == "channels":
            actor.call("send", ALL, peer=0, tag=number)
        else:
            actor.tool.on_group(group_of(0, 1, name=f"{number}"), made=True)
            actor.call("allreduce", group_of(0, 1, name=f"{number:090}"))

    assert stage.snapshot(1).has_gap


def test_groups_that_come_and_go_need_no_more_rows_than_there_are(stage, actor):
    for number in range(100):
        group = group_of(0, 1, name=f"{number}")
        actor.call("allreduce", group)
        actor.call("send", group, peer=0)
        actor.tool.on_group(group, made=False)

    assert not stage.snapshot(1).has_gap


def test_places_that_do_not_fit_are_left_out(stage, actor):
    for number in range(2000):
        site = Site(test_places_that_do_not_fit_are_left_out.__code__, number)
        wait = Wait(n=0, kind=WaitKind.STORE, call=None, keys=(), timeout_s=1.0, site=site, thread=1)
        actor.tool.on_wait(wait)
        if number == 0:
            assert stage.snapshot(1).waits[0].where == "test_board.py:0"
        actor.done(wait)
    actor.tool.on_wait(wait)

    assert stage.snapshot(1).waits[0].where == ""
    assert not stage.snapshot(1).has_gap


def test_an_expectation(stage, actor):
    actor.tool.expect("all_.*")
    assert (stage.snapshot(1).expects, stage.snapshot(1).expectation) == (True, "all_.*")

    actor.tool.expect("")
    assert (stage.snapshot(1).expects, stage.snapshot(1).expectation) == (True, "")

    actor.tool.expect(None)
    assert not stage.snapshot(1).expects


def test_an_expectation_that_is_too_long(actor):
    with pytest.raises(ValueError, match="240 bytes"):
        actor.tool.expect("x" * 241)


def test_copies_of_the_process_write_nowhere(stage, actor):
    actor.tool.let_go()
    actor.do("allreduce", ALL)

    assert stage.snapshot(1) == Snapshot(is_observed=True)


def test_every_row_lies_within_the_slot_and_none_on_another():
    tables = [layout.WAITS, layout.GROUPS, layout.CHANNELS]
    ends = [layout.RANK_AT + layout.RANK.size, *(table.end for table in tables)]

    assert all(end <= table.start for end, table in zip(ends, tables, strict=False))
    assert layout.TEXTS >= layout.CHANNELS.end
    assert layout.SLOT - layout.TEXTS > 4000


@given(st.lists(st.integers(0, 70), unique=True, min_size=1))
def test_ranks_of_a_group_are_read_as_they_were_written(ranks):
    assert layout.read_ranks(layout.write_ranks(tuple(ranks))) == tuple(ranks)


def test_ranks_of_a_large_world_are_short():
    assert layout.write_ranks(tuple(range(4096))) == "0-4095"


def test_absurd_ranks_are_refused():
    with pytest.raises(ValueError, match="a group of"):
        layout.read_ranks("0-99999999999")


def judged(slots):
    """What comes of a world with these slots: something, and never an exception."""
    ranks = dict(enumerate(map(read_slot, slots)))
    found = find_deadlock(Situation(ranks=ranks, over={}, now_s=10.0, began_s=0.0, deadline_s=300.0))
    return found and cause_of(found).message


def written():
    stage = Stage(2)
    stage.ranks[0].do("allreduce", ALL)
    stage.ranks[0].wait(kind=WaitKind.GROUP, ranks=(0, 1), thread=2)
    stage.ranks[1].do("recv", ALL, peer=0, tag=3)
    return [stage.board.slot(rank) for rank in (0, 1)]


@given(st.lists(st.tuples(st.integers(0, layout.SLOT - 1), st.integers(0, 255)), max_size=60))
@example([])
def test_bytes_that_a_broken_rank_has_written(changes):
    slots = written()
    broken = bytearray(slots[0])
    for place, value in changes:
        broken[place] = value

    message = judged([bytes(broken), slots[1]])
    assert message is None or "\n" not in message


@given(st.integers(0, 2**32))
def test_a_slot_full_of_anything(seed):
    noise = random.Random(seed).randbytes(layout.SLOT) if seed % 2 else bytes([seed % 256]) * layout.SLOT

    judged([noise, written()[1]])


def test_a_gpu_waits_for_calls_of_two_groups(stage, actor):
    calls = [actor.call("allreduce", ALL), actor.call("allgather", group_of(0, 1, name="1"))]
    wait = actor.queue(*calls)

    shown = [(each.kind, each.op, each.group) for each in stage.snapshot(1).waits]
    assert shown == [
        (WaitKind.DEVICE, "allgather", GroupKey(name="1", ranks=(0, 1))),
        (WaitKind.DEVICE, "allreduce", KEY),
    ]
    actor.done(wait)
    assert stage.snapshot(1).waits == ()


def test_rows_of_a_gpu_come_and_go(stage, actor):
    for _ in range(100):
        calls = [actor.call("allreduce", group_of(0, 1, name=str(number))) for number in range(6)]
        actor.done(actor.queue(*calls))

    assert not stage.snapshot(1).has_gap


def test_a_gpu_waits_for_nothing_that_an_earlier_test_has_issued(stage, actor):
    old = actor.call("allreduce", ALL)
    actor.tool.begin(has_gap=False)
    actor.queue(old)
    assert [wait.op for wait in stage.snapshot(1).waits] == [""]

    actor.queue(old, actor.call("allreduce", ALL), thread=2)
    assert [(wait.thread, wait.op, wait.seq) for wait in stage.snapshot(1).waits] == [
        (1, "", 0),
        (2, "allreduce", 2),
    ]


def test_what_is_not_seen_from_now_on_is_a_gap(stage, actor, monkeypatch):
    monkeypatch.setattr("disttest.plugins.deadlock.board_tool.gaps", lambda: ("something",))
    actor.do("allreduce", ALL)

    assert stage.snapshot(1).has_gap
