"""Which ranks are waited for before a group is taken down: those that are still being made members of one that is there."""

from __future__ import annotations

import pytest
from board_actors import NOWHERE, Stage, group_of

from disttest.observe import Wait, WaitKind
from disttest.plugins.deadlock import in_rank, layout
from disttest.plugins.deadlock.in_rank import LatePeers

BOTH = (0, 1)


class Clock:
    """The other rank comes through at its second tick; time passes only here."""

    def __init__(self, actor):
        self.now_s = 0.0
        self._actor = actor
        self._making = None

    def begin_making(self, ranks=BOTH):
        self._making = self._actor.wait(kind=WaitKind.GROUP, ranks=ranks)

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds
        if self.ticks == 2 and self._making is not None:
            self._actor.done(self._making)

    @property
    def ticks(self):
        return round(self.now_s / in_rank.LATE_PEER_POLL_S)


@pytest.fixture
def stage():
    return Stage(2)


@pytest.fixture
def clock(stage, monkeypatch):
    clock = Clock(stage.ranks[1])
    monkeypatch.setattr(in_rank, "monotonic", clock.monotonic)
    monkeypatch.setattr(in_rank, "sleep", clock.sleep)
    return clock


@pytest.fixture
def tool(stage):
    return LatePeers(stage.ranks[0].tool.peers)


def take_down(tool):
    tool.on_wait(
        Wait(n=0, kind=WaitKind.GROUP, call=None, keys=(), timeout_s=None, site=NOWHERE, thread=1, ranks=())
    )


def test_a_rank_that_is_still_in_the_making_is_waited_for(tool, clock):
    clock.begin_making()
    tool.on_group(group_of(*BOTH), made=True)

    take_down(tool)

    assert 2 == clock.ticks


def test_so_it_is_at_the_end_of_a_rank_that_destroys_nothing(tool, clock):
    clock.begin_making()
    tool.on_group(group_of(*BOTH), made=True)

    tool.wait()

    assert 2 == clock.ticks


def test_nobody_waits_for_a_rank_that_waits_for_this_one(tool, clock):
    clock.begin_making()

    take_down(tool)

    assert 0 == clock.ticks


def test_nor_for_one_that_is_a_group_ahead(stage, tool, clock):
    stage.ranks[1].done(stage.ranks[1].wait(kind=WaitKind.GROUP, ranks=BOTH))
    tool.on_group(group_of(*BOTH), made=True)
    clock.begin_making()

    take_down(tool)

    assert 0 == clock.ticks


def test_nor_for_one_that_makes_a_group_of_others(tool, clock):
    tool.on_group(group_of(*BOTH), made=True)
    clock.begin_making(ranks=(1, 2))

    take_down(tool)

    assert 0 == clock.ticks


def test_the_making_of_a_group_waits_for_nobody(tool, clock):
    clock.begin_making()
    tool.on_group(group_of(*BOTH), made=True)

    tool.on_wait(
        Wait(n=0, kind=WaitKind.GROUP, call=None, keys=(), timeout_s=None, site=NOWHERE, thread=1, ranks=BOTH)
    )

    assert 0 == clock.ticks


def test_one_that_never_comes_through_is_left_behind(stage, tool, clock, monkeypatch):
    monkeypatch.setattr(stage.ranks[1], "done", lambda _wait: None)
    clock.begin_making()
    tool.on_group(group_of(*BOTH), made=True)

    take_down(tool)

    assert in_rank.LATE_PEER_S == pytest.approx(clock.now_s, abs=2 * in_rank.LATE_PEER_POLL_S)


def test_a_new_test_begins_with_no_groups(stage, tool, clock):
    tool.on_group(group_of(*BOTH), made=True)
    tool.begin()
    clock.begin_making()

    take_down(tool)

    assert 0 == clock.ticks


def test_a_slot_that_makes_no_sense_keeps_nobody(clock):
    tool = LatePeers(lambda: [b"\xff" * layout.SLOT, b""])
    tool.on_group(group_of(*BOTH), made=True)

    take_down(tool)

    assert 0 == clock.ticks
