"""When slots beyond the processors are lent, and when taken back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from planning_cases import slots

from disttest.host.idle_processors import Idleness
from disttest.host.machine import CpuShare, Limits, Machine
from disttest.limits import SPARE_LOOK_S
from disttest.model import Slot
from disttest.runtime.controller import spare_slots
from disttest.runtime.controller.spare_slots import SpareSlots, may_lend

MACHINE = Machine(cpu=CpuShare(online=2, affinity=2), limits=Limits(memory=8, memory_total=8))
ASLEEP = Idleness(idle=2, stalled=0)


class _Scheduler:
    """Notes what it is lent."""

    def __init__(self) -> None:
        self.narrowest = 1
        self.lent: list[str] = []

    def add_spare(self, slots: Iterable[Slot]) -> None:
        self.lent += [slot.name for slot in slots]

    def recall(self, slots: Iterable[Slot]) -> None:
        self.lent = [name for name in self.lent if name not in {slot.name for slot in slots}]


class _Bench:
    """Spare slots whose clock and processors the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen = ASLEEP
        self.now_s = 100.0
        self.memory = SimpleNamespace(available=6, total=8)
        self.scheduler: Any = _Scheduler()
        monkeypatch.setattr(spare_slots, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(spare_slots.psutil, "virtual_memory", lambda: self.memory)
        self.spare = SpareSlots(self.scheduler, MACHINE, 2, lambda: self.seen)

    def look(self, *running: Any, later_s: float = SPARE_LOOK_S) -> list[str]:
        """Slots that are lent after one more look."""
        self.now_s += later_s
        self.spare.advance(running)
        return list(self.scheduler.lent)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> _Bench:
    return _Bench(monkeypatch)


def test_as_many_as_processors_are_idle(bench: _Bench) -> None:
    assert ["cpu:2", "cpu:3"] == bench.look()
    bench.seen = Idleness(idle=0.6, stalled=0.1)
    assert ["cpu:2", "cpu:3", "cpu:4"] == bench.look()
    bench.seen = Idleness(idle=0.4, stalled=0.1)
    assert ["cpu:2", "cpu:3", "cpu:4"] == bench.look()


def test_as_many_as_the_narrowest_world_takes(bench: _Bench) -> None:
    bench.scheduler.narrowest = 4
    bench.seen = Idleness(idle=0.6, stalled=0.1)

    assert ["cpu:2", "cpu:3", "cpu:4", "cpu:5"] == bench.look()


def test_as_many_as_there_is_room_for_if_they_use_what_the_others_do(bench: _Bench) -> None:
    world = SimpleNamespace(begun=None, began_s=0.0, slots=("cpu:0", "cpu:1"))
    bench.seen = Idleness(idle=1.5, stalled=0.1)  # a quarter of a processor each

    assert ["cpu:2", "cpu:3"] == bench.look(world)  # no more at once than are in use
    assert 4 + 2 == len(bench.look(world, world))
    bench.seen = Idleness(idle=1, stalled=0.1)
    assert 6 + 4 == len(bench.look(*[world] * 3))  # there are 6, with a sixth of a processor each
    bench.seen = Idleness(idle=0.5, stalled=0.1)
    assert 10 + 1 == len(bench.look(*[world] * 4))  # the narrowest world's


def test_eight_for_each_processor_at_most(bench: _Bench) -> None:
    for _ in range(10):
        bench.look()

    assert [f"cpu:{number}" for number in range(2, 18)] == bench.scheduler.lent
    assert 16 == bench.spare.count


def test_none_before_it_is_time_to_look(bench: _Bench) -> None:
    assert [] == bench.look(later_s=SPARE_LOOK_S / 2)


def test_none_while_nothing_waits(bench: _Bench) -> None:
    bench.scheduler.narrowest = 0

    assert [] == bench.look()
    assert math.inf == bench.spare.wait_s


@pytest.mark.parametrize("seen", [Idleness(idle=2, stalled=0.5), Idleness(idle=0.4, stalled=0)])
def test_none_where_it_would_be_noticed(bench: _Bench, seen: Idleness) -> None:
    bench.seen = seen

    assert [] == bench.look()


def test_none_where_memory_is_short(bench: _Bench) -> None:
    bench.memory.available = 1

    assert [] == bench.look()


def test_half_is_taken_back_whenever_processors_are_wanted(bench: _Bench) -> None:
    bench.look()
    bench.look()
    bench.seen = Idleness(idle=0.2, stalled=0.6)
    assert ["cpu:2", "cpu:3"] == bench.look()
    assert ["cpu:2"] == bench.look()
    assert [] == bench.look()
    bench.seen = ASLEEP
    assert ["cpu:2", "cpu:3"] == bench.look()


def test_none_is_taken_back_where_somebody_waits_but_not_for_long(bench: _Bench) -> None:
    lent = bench.look()

    for bench.seen in (Idleness(idle=0.3, stalled=0.9), Idleness(idle=0.1, stalled=0.5)):
        assert lent == bench.look()


def test_taken_back_beside_a_test_that_may_need_the_rest_of_its_time(bench: _Bench) -> None:
    at_rest = SimpleNamespace(begun=None, began_s=0.0, slots=())
    in_time = SimpleNamespace(begun=SimpleNamespace(timeout_s=300), began_s=100.0, slots=())
    late = SimpleNamespace(begun=SimpleNamespace(timeout_s=1.9), began_s=100.0)

    assert ["cpu:2", "cpu:3"] == bench.look(at_rest, in_time)
    assert [] == bench.look(in_time, late)


QUOTA = Machine(cpu=CpuShare(online=8, affinity=8, quota=2), limits=Limits(memory=8, memory_total=8))
SHORT = Machine(cpu=CpuShare(online=2, affinity=2), limits=Limits(memory=4, memory_total=8))


@pytest.mark.parametrize(
    ("machine", "own", "counted", "may"),
    [
        pytest.param(MACHINE, slots(2), False, True, id="default"),
        pytest.param(MACHINE, slots(2), True, False, id="--slots is law"),
        pytest.param(QUOTA, slots(2), False, False, id="a quota of processors"),
        pytest.param(SHORT, slots(2), False, False, id="a limit of memory"),
        pytest.param(MACHINE, slots(2, "cuda"), False, False, id="gpus are exclusive"),
        pytest.param(MACHINE, (), False, False, id="no slots"),
    ],
)
def test_who_may(machine: Machine, own: tuple[Slot, ...], counted: bool, may: bool) -> None:
    assert may == may_lend(machine, own, counted=counted)
