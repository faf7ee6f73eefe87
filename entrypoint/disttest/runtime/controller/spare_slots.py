"""Extra slots, lent while processors are idle: worlds on the CPU often sleep or wait for each other.

A fixed number of slots for each processor suits no suite: one computes, another sleeps. The idle time and the pressure
of the whole machine are measured, so that load of other programs counts too. Running worlds are never stopped, and
slots counted by the user (``--slots``) are not extended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import psutil

from disttest.clock import monotonic
from disttest.host.idle_processors import Idleness
from disttest.host.machine import Machine
from disttest.limits import SPARE_LOOK_S
from disttest.model import Slot
from disttest.planning.schedule import Scheduler
from disttest.runtime.controller.world_pool import LiveWorld

MOST = 8
"""Maximum number of slots lent for each processor: a world also costs memory and processes."""
IDLE = 0.5
"""Processors that must be idle before a slot is lent."""
LEFT = 0.25
"""Processors that must stay idle if the lent slots get worlds like the running ones."""
LEAST_USE = 0.05
"""Minimum use of processors assumed for a slot, whatever the running ones use."""
STALLED = 0.5
"""Share of time in which some task waited for a processor; above it no slot is lent."""
WANTED = Idleness(idle=0.25, stalled=0.6)
"""Below this idle time and above this waiting time, free slots are taken back."""
MEMORY_LEFT = 0.25
"""Share of the machine's memory that must stay available."""
LIMIT_USED = 0.25
"""Share of a test's time limit; no world joins a test that has used more of it."""


class SpareSlots:
    """Lends CPU slots to the scheduler of one run."""

    def __init__(
        self, scheduler: Scheduler, machine: Machine, own: int, look: Callable[[], Idleness]
    ) -> None:
        """Start measuring.

        Args:
            scheduler: the scheduler that uses the slots.
            machine: the machine with the processors.
            own: number of regular slots; extra ones are numbered after them.
            look: returns how idle the processors were since the previous call.
        """
        self._scheduler = scheduler
        self._spare = machine.slots("cpu", own + MOST * machine.cpus)[own:]
        self._lent = 0
        self._processors = machine.cpus
        self._look = look
        self._next_s = monotonic() + SPARE_LOOK_S

    @property
    def count(self) -> int:
        """Maximum number of slots that may be lent."""
        return len(self._spare)

    @property
    def wait_s(self) -> float:
        """Seconds until the next look; infinite while no batch waits for a slot."""
        return max(0.0, self._next_s - monotonic()) if self._scheduler.narrowest else math.inf

    def advance(self, running: Iterable[LiveWorld]) -> None:
        """Look if it is due, and lend or take back slots."""
        now_s = monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + SPARE_LOOK_S
        running, seen = tuple(running), self._look()
        # First, whatever the processors show: more load could make this test time out.
        if has_used_its_time(running, now_s):
            self._keep(0)
        elif is_wanted(seen):
            # Half at each look: taking back all after one busy quarter of a second left the machine half idle for
            # the next two (torch's 285 tests on two processors: 22 s, and 17 s this way).
            self._keep(self._lent // 2)
        elif (narrowest := self._scheduler.narrowest) and is_room(seen) and has_memory():
            used = sum(len(world.slots) for world in running)
            count = max(narrowest, room_for(seen, used, self._processors))
            more = self._spare[self._lent : self._lent + count]
            self._scheduler.add_spare(more)
            self._lent += len(more)

    def _keep(self, count: int) -> None:
        """Take back all but ``count`` slots."""
        self._scheduler.recall(self._spare[count : self._lent])
        self._lent = count


def is_room(seen: Idleness) -> bool:
    """Whether the processors have room for another world."""
    return seen.idle >= IDLE and seen.stalled < STALLED


def room_for(seen: Idleness, used: int, processors: int) -> int:
    """Return how many more slots the processors have room for at the average use; at most as many as are in use.

    Args:
        seen: idleness of the processors.
        used: slots of running worlds.
        processors: processors of the machine.
    """
    if not used:
        return math.floor(seen.idle + 1 - IDLE)
    of_each = max(LEAST_USE, (processors - seen.idle) / used)
    return min(used, math.floor((seen.idle - LEFT) / of_each))


def is_wanted(seen: Idleness) -> bool:
    """Whether other programs, or the run's own worlds, need the processors."""
    return seen.idle < WANTED.idle and seen.stalled >= WANTED.stalled


def has_memory() -> bool:
    """Whether enough memory is available."""
    memory = psutil.virtual_memory()
    return memory.available >= MEMORY_LEFT * memory.total


def has_used_its_time(running: Iterable[LiveWorld], now_s: float) -> bool:
    """Whether a running test has used so much of its time limit that no world should join it."""
    return any(
        world.begun is not None and now_s - world.began_s > LIMIT_USED * world.begun.timeout_s
        for world in running
    )


def may_lend(machine: Machine, slots: tuple[Slot, ...], *, counted: bool) -> bool:
    """Whether a run may use more slots than it has.

    Args:
        machine: the machine, which must be whole: idleness within the limits of a cgroup cannot be measured.
        slots: slots of the run.
        counted: whether the user set their number.
    """
    limits = machine.limits
    whole = machine.cpu.quota is None and limits.memory >= limits.memory_total
    return whole and not counted and bool(slots) and all(slot.device == "cpu" for slot in slots)
