"""Slots beyond the processors, lent while these are idle: worlds on the CPU often sleep, or wait for each other.

One more world starts where processors' worth of time is left over; nothing more starts as soon as there is not. What
runs is never stopped, and slots that the user has counted (``--slots``) are not added to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import psutil

from disttest.clock import monotonic
from disttest.host.devices import Machine
from disttest.host.idle_processors import Idleness
from disttest.limits import SPARE_LOOK_S
from disttest.model import Slot
from disttest.planning.schedule import Scheduler
from disttest.runtime.controller.world_pool import LiveWorld

MOST = 8
"""Slots that are lent for each processor, at most: a world also costs memory and processes."""
IDLE = 0.5
"""Processors that have to be idle before a slot is lent."""
LEFT = 0.25
"""Processors that are to be idle still when worlds like those that run are on the slots that are lent."""
LEAST_USE = 0.05
"""Processors that a slot is taken to use at least, whatever those use that run now."""
STALLED = 0.5
"""No slot is lent where more of the time somebody had to wait for a processor."""
WANTED = Idleness(idle=0.25, stalled=0.6)
"""With less left over and more waiting than that, slots that are free are taken back."""
MEMORY_LEFT = 0.25
"""Share of the machine's memory that stays available."""
LIMIT_USED = 0.25
"""Share of a test's time limit; nothing joins a test that has used more of it."""


class SpareSlots:
    """Lends slots of the CPU to the scheduler of one run."""

    def __init__(
        self, scheduler: Scheduler, machine: Machine, own: int, look: Callable[[], Idleness]
    ) -> None:
        """Begin to look.

        Args:
            scheduler: who uses them.
            machine: whose processors they are.
            own: how many slots the run has anyway; spare ones are numbered behind them.
            look: tells how idle the processors were since it was called last.
        """
        self._scheduler = scheduler
        self._spare = machine.slots("cpu", own + MOST * machine.cpus)[own:]
        self._lent = 0
        self._processors = machine.cpus
        self._look = look
        self._next_s = monotonic() + SPARE_LOOK_S

    @property
    def count(self) -> int:
        """How many may be lent at the most."""
        return len(self._spare)

    @property
    def wait_s(self) -> float:
        """How long until the next look; infinite while nothing waits for a slot."""
        return max(0.0, self._next_s - monotonic()) if self._scheduler.narrowest else math.inf

    def advance(self, running: Iterable[LiveWorld]) -> None:
        """Look, if it is time, and lend or take back."""
        now_s = monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + SPARE_LOOK_S
        running, seen = tuple(running), self._look()
        if has_used_its_time(running, now_s):
            self._keep(0)
        elif is_wanted(seen):
            self._keep(self._lent // 2)
        elif (narrowest := self._scheduler.narrowest) and is_room(seen) and has_memory():
            used = sum(len(world.slots) for world in running)
            count = max(narrowest, room_for(seen, used, self._processors))
            more = self._spare[self._lent : self._lent + count]
            self._scheduler.lend(more)
            self._lent += len(more)

    def _keep(self, count: int) -> None:
        """Take back all but so many."""
        self._scheduler.recall(self._spare[count : self._lent])
        self._lent = count


def is_room(seen: Idleness) -> bool:
    """Whether the processors would not notice another world."""
    return seen.idle >= IDLE and seen.stalled < STALLED


def room_for(seen: Idleness, used: int, processors: int) -> int:
    """How many more slots the processors have room for, if they use as much as the others do; no more than these at once.

    Args:
        seen: how idle the processors are.
        used: slots of worlds that run.
        processors: of the machine.
    """
    if not used:
        return math.floor(seen.idle + 1 - IDLE)
    of_each = max(LEAST_USE, (processors - seen.idle) / used)
    return min(used, math.floor((seen.idle - LEFT) / of_each))


def is_wanted(seen: Idleness) -> bool:
    """Whether others, or the run's own worlds, need the processors."""
    return seen.idle < WANTED.idle and seen.stalled >= WANTED.stalled


def has_memory() -> bool:
    """Whether there is memory for it."""
    memory = psutil.virtual_memory()
    return memory.available >= MEMORY_LEFT * memory.total


def has_used_its_time(running: Iterable[LiveWorld], now_s: float) -> bool:
    """Whether a test runs that has used so much of its limit that it should have the processors for itself."""
    return any(
        world.begun is not None and now_s - world.began_s > LIMIT_USED * world.begun.timeout_s
        for world in running
    )


def may_lend(machine: Machine, slots: tuple[Slot, ...], *, counted: bool) -> bool:
    """Whether a run may use more slots than it has.

    Args:
        machine: it must be whole; what is idle within the limits of a cgroup cannot be seen.
        slots: of the run.
        counted: whether the user has said how many.
    """
    limits = machine.limits
    whole = machine.cpu.quota is None and limits.memory >= limits.memory_total
    return whole and not counted and bool(slots) and all(slot.device == "cpu" for slot in slots)
