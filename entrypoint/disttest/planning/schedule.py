"""Which gang starts next on which slots. Pure: slots, gangs and a clock in, starts out; no process.

The order, among what waits for one type of device:

1. urgent gangs (``--failed-first``);
2. critical gangs: those that would outlast all remaining work, were it spread evenly over the slots; longest first;
3. the widest, and of one width the longest. Widest first wastes no slot: when a gang ends, whatever waits is no
   wider than what ended, and the narrow ones fill the tail.

When the first in that order does not fit, it gets a reservation: the time at which enough running gangs are expected
to have ended. Others start meanwhile only if they are expected to be done by then, or fit beside it (the EASY
backfilling of Lifka, "The ANL/IBM SP Scheduling System", 1995). Expectations can be wrong: once the time of its first
reservation has passed, a gang is overtaken only a limited number of times (``OVERTAKE_LIMIT`` for each slot); after
that nothing starts until it does. So no gang waits for ever.

Exclusive gangs run alone: they start only while the machine is empty, before anything else has started or when
nothing else is left. So they never make the others wait for the machine to drain, and always run in the end.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from disttest.model import Frozen, Gang, Slot
from disttest.planning.placement import SlotPool
from disttest.planning.timings import UNKNOWN_S
from disttest.planning.waiting import PendingGangs

OVERTAKE_LIMIT = 2
"""How often, for each slot of its device type, a gang may be overtaken after the time it was promised."""

CRITICAL_SHARE = 0.8
"""A gang is critical from this share of the remaining time on. Early enough for estimates that are 20 % off (at 1.0
the 95th percentile over the lower bound is 1.11 on 64 slots), late enough not to hold up wide gangs (at 0.7: 1.16 on 8
slots, log-normal durations)."""


class Start(Frozen):
    """A decision: run this gang on these slots now."""

    gang: Gang
    slots: tuple[Slot, ...]


class Scheduler(Protocol):
    """What the controller asks; it reports back every gang that ended."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""

    @property
    def narrowest(self) -> int:
        """The least slots that a gang waits for; 0 where none waits."""

    def submit(self, gang: Gang) -> None:
        """Queue a gang: a new one, or what is left of one whose world broke."""

    def due(self) -> Iterable[Start]:
        """Yield the gangs to start now; each is counted as running from here on."""

    def ended(self, gang_id: str, *, quarantined: Iterable[Slot] = ()) -> None:
        """Take back the slots of a gang, but for those that cannot be used again."""

    def hold(self, slots: Iterable[Slot]) -> None:
        """Start nothing on these slots until they are released."""

    def release(self, slots: Iterable[Slot]) -> None:
        """Use these slots again."""

    def lend(self, slots: Iterable[Slot]) -> None:
        """Use these slots, too, beyond those of the machine, until they are recalled."""

    def recall(self, slots: Iterable[Slot]) -> None:
        """Start nothing more on these slots, which were lent; what runs on them is not touched."""

    def quarantine(self, slots: Iterable[Slot]) -> None:
        """Never use these slots again; what runs on them is not touched."""

    def withdraw(self, *, spare: str = "") -> tuple[Gang, ...]:
        """Take out all gangs that wait, but for those of one device type."""

    def stranded(self) -> tuple[Gang, ...]:
        """Take out the gangs that can never start, since too few slots are left that are not quarantined."""


class _Running(NamedTuple):
    """A started gang; ordered by when it is expected to end."""

    ends_s: float
    order: int
    gang: Gang
    slots: tuple[Slot, ...]


class _Lane:
    """The slots of one device type, and the gangs that wait for and run on them."""

    def __init__(self, device: str, slots: Iterable[Slot], *, ranks_per_slot: int = 1) -> None:
        self.device = device
        self._ranks_per_slot = ranks_per_slot
        self.pool = SlotPool(slots)
        self.waiting = PendingGangs()
        self.running: list[_Running] = []
        self._promised_s: dict[str, float] = {}
        self._overtaken: dict[str, int] = {}
        # Sums over what runs, for the remaining work: slot-seconds at the expected ends, and slots.
        self._ends_work = 0.0
        self._taken = 0

    def width(self, gang: Gang) -> int | None:
        """Slots that a gang takes; None when it can never start.

        A world that is larger than the machine shares the CPU: it takes all of it. The ranks of a world share
        GPUs only if the run allows several ranks on each; tests that start their ranks by themselves always may.
        """
        size, total = gang.shape.size, self.pool.total
        if size <= total:
            return size
        may_share = self.device == "cpu" or gang.shares or size <= total * self._ranks_per_slot
        return total if may_share and total else None

    def pick(self, now_s: float) -> _Running | None:
        """Choose the gang that starts now, and count it as running."""
        if not self.waiting.count or not self.pool.free:
            return None
        first = self._first(now_s, self.waiting.firsts(widest=self.pool.total))
        if first is None:
            return None
        if first[0] > self.pool.free:
            first = self._backfill(now_s, reserved=first)
        return None if first is None else self.start(*self.waiting.remove(first[0], first[1]), now_s)

    def start(self, order: int, gang: Gang, now_s: float) -> _Running:
        """Give slots to a gang that no longer waits."""
        self._promised_s.pop(gang.gang_id, None)
        self._overtaken.pop(gang.gang_id, None)
        running = _Running(now_s + gang.expected_s, order, gang, self.pool.take(self.width(gang) or 0))
        insort(self.running, running, key=_ends)
        self._count(running, 1)
        return running

    def end(self, running: _Running) -> None:
        """Free the slots of a gang."""
        self.running.pop(bisect_left(self.running, _ends(running), key=_ends))
        self.pool.give_back(running.slots)
        self._count(running, -1)

    def _first(
        self, now_s: float, candidates: Iterator[tuple[int, int, Gang]]
    ) -> tuple[int, int, Gang] | None:
        remaining_s = self._remaining_s(now_s) * CRITICAL_SHARE

        def rank(candidate: tuple[int, int, Gang]) -> tuple[bool, bool, float, float]:
            width, _, gang = candidate
            critical = gang.expected_s >= remaining_s
            return (gang.urgent, critical, gang.expected_s if critical else width, gang.expected_s)

        return max(candidates, key=rank, default=None)

    def _backfill(self, now_s: float, reserved: tuple[int, int, Gang]) -> tuple[int, int, Gang] | None:
        width, _, gang = reserved
        free, seats_at_s, spare = self.pool.free, now_s, self.pool.free - width
        for running in self.running:
            if spare >= 0 and running.ends_s > seats_at_s:
                break
            seats_at_s = max(now_s, running.ends_s)
            spare += len(running.slots)
        if spare < 0:  # it waits for slots on hold, and nobody knows for how long
            return self._first(now_s, self.waiting.firsts(widest=free))
        if not self._may_be_overtaken(gang, now_s, seats_at_s):
            return None
        chosen = self._first(now_s, self.waiting.firsts(widest=min(free, spare))) or self._first(
            now_s, self.waiting.firsts(widest=free, within_s=seats_at_s - now_s)
        )
        if chosen and now_s > self._promised_s[gang.gang_id]:
            self._overtaken[gang.gang_id] = self._overtaken.get(gang.gang_id, 0) + 1
        return chosen

    def _may_be_overtaken(self, gang: Gang, now_s: float, seats_at_s: float) -> bool:
        """Whether others may start before a gang that does not fit: freely until the time it was first promised."""
        promised_s = self._promised_s.setdefault(gang.gang_id, seats_at_s)
        late = now_s > promised_s
        return not late or self._overtaken.get(gang.gang_id, 0) < OVERTAKE_LIMIT * self.pool.total

    def _remaining_s(self, now_s: float) -> float:
        # What has overrun its estimate counts as negative work here; the whole is an estimate in any case.
        running_s = max(0.0, self._ends_work - now_s * self._taken)
        return (self.waiting.work_s + running_s) / self.pool.total

    def _count(self, running: _Running, sign: int) -> None:
        self._taken += sign * len(running.slots)
        self._ends_work += sign * len(running.slots) * running.ends_s


def _ends(running: _Running) -> tuple[float, int]:
    return running.ends_s, running.order


class GangScheduler:
    """The event-driven gang scheduler; see the module for its rules. Equal input gives equal decisions.

    A decision costs a look at the first gang of each width and at what runs, never at all that waits.
    """

    def __init__(self, slots: Iterable[Slot], *, clock: Callable[[], float], ranks_per_gpu: int = 1) -> None:
        by_device: dict[str, list[Slot]] = {}
        for slot in slots:
            by_device.setdefault(slot.device, []).append(slot)
        self._clock = clock
        self._lanes = {
            device: _Lane(device, of_device, ranks_per_slot=ranks_per_gpu)
            for device, of_device in by_device.items()
        }
        self._exclusive: deque[Gang] = deque()
        self._stranded: list[Gang] = []
        self._running: dict[str, _Running] = {}
        self._known: set[str] = set()
        self._alone = ""
        """The exclusive gang that runs."""
        self._submitted = 0

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._known

    @property
    def narrowest(self) -> int:
        """The least slots that a gang waits for."""
        return min((lane.waiting.narrowest for lane in self._lanes.values() if lane.waiting.count), default=0)

    def submit(self, gang: Gang) -> None:
        """Queue a gang.

        Raises:
            ValueError: a gang of that id waits or runs.
        """
        if gang.gang_id in self._known:
            raise ValueError(f"gang {gang.gang_id} was submitted twice")
        self._known.add(gang.gang_id)
        self._submitted += 1
        self._queue(_with_usable_estimate(gang), self._submitted)

    def due(self) -> Iterator[Start]:
        """Yield the gangs to start now."""
        while running := self._next():
            self._running[running.gang.gang_id] = running
            yield Start(gang=running.gang, slots=running.slots)

    def ended(self, gang_id: str, *, quarantined: Iterable[Slot] = ()) -> None:
        """Take back the slots of a gang, but for those that cannot be used again."""
        running = self._running.pop(gang_id)
        self._known.remove(gang_id)
        if self._alone == gang_id:
            self._alone = ""
        self._lanes[running.gang.shape.device].end(running)
        self.quarantine(quarantined)

    def hold(self, slots: Iterable[Slot]) -> None:
        """Start nothing on these slots until they are released."""
        for slot in slots:
            self._lanes[slot.device].pool.hold(slot)

    def release(self, slots: Iterable[Slot]) -> None:
        """Use these slots again."""
        for slot in slots:
            self._lanes[slot.device].pool.release(slot)

    def lend(self, slots: Iterable[Slot]) -> None:
        """Use these slots, too, until they are recalled; widths and promises are those of the machine's own."""
        for slot in slots:
            self._lanes[slot.device].pool.lend(slot)

    def recall(self, slots: Iterable[Slot]) -> None:
        """Start nothing more on these slots, which were lent."""
        for slot in slots:
            self._lanes[slot.device].pool.recall(slot)

    def quarantine(self, slots: Iterable[Slot]) -> None:
        """Never use these slots again; what runs on them is not touched."""
        lost = tuple(slots)
        for slot in lost:
            self._lanes[slot.device].pool.quarantine(slot)
        for device in sorted({slot.device for slot in lost}):
            self._requeue(self._lanes[device])

    def withdraw(self, *, spare: str = "") -> tuple[Gang, ...]:
        """Take out all gangs that wait, but for those of one device type."""
        lanes = [lane for lane in self._lanes.values() if lane.device != spare]
        waiting = [gang for lane in lanes for _, gang in lane.waiting.drain()]
        others = [*self._exclusive, *self._stranded]
        waiting += [gang for gang in others if gang.shape.device != spare]
        self._exclusive = deque(gang for gang in self._exclusive if gang.shape.device == spare)
        self._stranded = [gang for gang in self._stranded if gang.shape.device == spare]
        self._known.difference_update(gang.gang_id for gang in waiting)
        return tuple(waiting)

    def stranded(self) -> tuple[Gang, ...]:
        """Take out the gangs that can never start."""
        stranded = tuple(self._stranded)
        self._stranded.clear()
        self._known.difference_update(gang.gang_id for gang in stranded)
        return stranded

    def _queue(self, gang: Gang, order: int) -> None:
        lane = self._lanes.get(gang.shape.device)
        width = lane.width(gang) if lane else None
        if lane is None or width is None:
            self._stranded.append(gang)
        elif gang.exclusive:
            self._exclusive.append(gang)
        else:
            lane.waiting.add(gang, width=width, order=order)

    def _requeue(self, lane: _Lane) -> None:
        """Sort what waits anew, after slots were lost: widths on the CPU change, and some fit no longer."""
        for order, gang in lane.waiting.drain():
            self._queue(gang, order)
        for _ in range(len(self._exclusive)):
            self._queue(self._exclusive.popleft(), 0)

    def _next(self) -> _Running | None:
        now_s = self._clock()
        if self._exclusive and not self._running and self._fits(self._exclusive[0]):
            self._submitted += 1
            gang = self._exclusive.popleft()
            self._alone = gang.gang_id
            return self._lanes[gang.shape.device].start(self._submitted, gang, now_s)
        if self._alone:
            return None
        return next((running for lane in self._lanes.values() if (running := lane.pick(now_s))), None)

    def _fits(self, gang: Gang) -> bool:
        lane = self._lanes[gang.shape.device]
        return (lane.width(gang) or 0) <= lane.pool.free  # some may be on hold


def _with_usable_estimate(gang: Gang) -> Gang:
    if math.isfinite(gang.expected_s) and gang.expected_s > 0:
        return gang
    return msgspec.structs.replace(gang, expected_s=UNKNOWN_S)
