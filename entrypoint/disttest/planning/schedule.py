"""Scheduling of batches on slots. Pure: slots, batches and a clock are the input, starts the output.

The order of the batches that wait for one type of device:

1. urgent batches (``--failed-first``);
2. critical batches, which would outlast all remaining work if it were spread evenly over the slots; longest first;
3. the widest, and of one width the longest. Widest first wastes no slot: when a batch ends, no waiting batch is
   wider than it, and the narrow ones fill the tail. Longest first alone leaves gaps.

If the first batch in that order does not fit, it gets a reservation: the time at which enough running batches are
expected to have ended. Others start meanwhile only if they are expected to end by then, or fit next to it (the EASY
backfilling of Lifka, "The ANL/IBM SP Scheduling System", 1995). Expectations can be wrong: once the time of its
first reservation has passed, a batch is overtaken only a limited number of times (``OVERTAKE_LIMIT`` for each
slot). After that, nothing starts until it does, so no batch waits for ever.

Exclusive batches run alone: they start only while the machine is empty, before anything else has started or when
nothing else is left. At any other time, the machine would have to drain for them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from disttest.model import Batch, Frozen, Slot
from disttest.planning.placement import PendingBatches, SlotPool
from disttest.planning.timings import UNKNOWN_S

# Counting overtakers from the start left slots idle while a wide world waited (makespan 1.4 times the lower bound
# at worst, 1.1 now). Not counting them let a stream of tests with wrong estimates hold up a wide world for ever.
OVERTAKE_LIMIT = 2
"""Number of times, per slot of its device type, that a batch may be overtaken after its promised time."""

CRITICAL_SHARE = 0.8
"""Share of the remaining time from which a batch is critical. It is early enough for estimates that are 20 % off (at
1.0 the 95th percentile over the lower bound is 1.11 on 64 slots). It is late enough not to hold up wide batches (at
0.7: 1.16 on 8 slots, log-normal durations).
"""


class Start(Frozen):
    """A decision: run this batch on these slots now."""

    batch: Batch
    slots: tuple[Slot, ...]


class Scheduler(Protocol):
    """The interface of schedulers to the controller, which reports every batch that has ended."""

    @property
    def idle(self) -> bool:
        """Whether no batch waits or runs."""

    @property
    def narrowest(self) -> int:
        """Smallest number of slots that a waiting batch needs; 0 if none waits."""

    def submit(self, batch: Batch) -> None:
        """Queue a batch: a new one, or the rest of one whose world broke."""

    def due(self) -> Iterable[Start]:
        """Yield the batches to start now. Each counts as running from now on."""

    def ended(self, batch_id: str, *, quarantined: Iterable[Slot] = ()) -> None:
        """Return the slots of a batch, except those that cannot be used again."""

    def hold(self, slots: Iterable[Slot]) -> None:
        """Start nothing on these slots until they are released."""

    def release(self, slots: Iterable[Slot]) -> None:
        """Use these slots again."""

    def add_spare(self, slots: Iterable[Slot]) -> None:
        """Use these borrowed slots, too, until they are recalled."""

    def recall(self, slots: Iterable[Slot]) -> None:
        """Start nothing more on these borrowed slots. Batches that run on them continue."""

    def quarantine(self, slots: Iterable[Slot]) -> None:
        """Never use these slots again. Batches that run on them continue."""

    def withdraw(self, *, spare: str = "") -> tuple[Batch, ...]:
        """Remove all waiting batches, except those of one device type."""

    def stranded(self) -> tuple[Batch, ...]:
        """Remove the batches that can never start because too few usable slots are left."""


class _Running(NamedTuple):
    """A started batch, ordered by its expected end."""

    ends_s: float
    order: int
    batch: Batch
    slots: tuple[Slot, ...]


class _Lane:
    """The slots of one device type with their waiting and running batches."""

    # GPUs and CPU are separate lanes that share no rule except ``exclusive``: a reservation on one kind never idles
    # the other.

    def __init__(self, device: str, slots: Iterable[Slot], *, ranks_per_slot: int = 1) -> None:
        self.device = device
        self._ranks_per_slot = ranks_per_slot
        self.pool = SlotPool(slots)
        self.waiting = PendingBatches()
        self.running: list[_Running] = []
        self._promised_s: dict[str, float] = {}
        self._overtaken: dict[str, int] = {}
        # Sums over running batches for the remaining work: slot-seconds at the expected ends, and slots.
        self._ends_work = 0.0
        self._taken = 0

    def width(self, batch: Batch) -> int | None:
        """Return the number of slots that a batch takes; None if it can never start."""
        # A world larger than the machine shares the CPU: it takes all of it. Ranks of a world share GPUs only if the
        # run allows several ranks on each. Tests that start their own ranks always may.
        size, total = batch.shape.size, self.pool.total
        if size <= total:
            return size
        may_share = self.device == "cpu" or batch.shares or size <= total * self._ranks_per_slot
        return total if may_share and total else None

    def pick(self, now_s: float) -> _Running | None:
        """Choose the batch that starts now, and count it as running."""
        if not self.waiting.count or not self.pool.free:
            return None
        first = self._first(now_s, self.waiting.firsts(widest=self.pool.total))
        if first is None:
            return None
        if first[0] > self.pool.free:
            # It does not fit yet. Others may use the free slots if they do not delay it.
            first = self._backfill(now_s, reserved=first)
        return None if first is None else self.start(*self.waiting.remove(first[0], first[1]), now_s)

    def start(self, order: int, batch: Batch, now_s: float) -> _Running:
        """Assign slots to a batch that no longer waits."""
        self._promised_s.pop(batch.batch_id, None)
        self._overtaken.pop(batch.batch_id, None)
        running = _Running(now_s + batch.expected_s, order, batch, self.pool.take(self.width(batch) or 0))
        insort(self.running, running, key=_ends)
        self._count(running, 1)
        return running

    def end(self, running: _Running) -> None:
        """Free the slots of a batch."""
        self.running.pop(bisect_left(self.running, _ends(running), key=_ends))
        self.pool.return_slots(running.slots)
        self._count(running, -1)

    def _first(
        self, now_s: float, candidates: Iterator[tuple[int, int, Batch]]
    ) -> tuple[int, int, Batch] | None:
        remaining_s = self._remaining_s(now_s) * CRITICAL_SHARE

        def rank(candidate: tuple[int, int, Batch]) -> tuple[bool, bool, float, float]:
            width, _, batch = candidate
            critical = batch.expected_s >= remaining_s
            return (batch.urgent, critical, batch.expected_s if critical else width, batch.expected_s)

        return max(candidates, key=rank, default=None)

    def _backfill(self, now_s: float, reserved: tuple[int, int, Batch]) -> tuple[int, int, Batch] | None:
        width, _, batch = reserved
        # `spare` begins below zero, by the number of missing slots. Each batch that ends adds its slots.
        free, seats_at_s, spare = self.pool.free, now_s, self.pool.free - width
        for running in self.running:
            # Batches that end at the same moment free their slots, too.
            if spare >= 0 and running.ends_s > seats_at_s:
                break
            # A batch that is overdue is expected to end now.
            seats_at_s = max(now_s, running.ends_s)
            spare += len(running.slots)
        if spare < 0:  # it waits for slots on hold, for an unknown time
            return self._first(now_s, self.waiting.firsts(widest=free))
        if not self._may_be_overtaken(batch, now_s, seats_at_s):
            return None
        # First a batch that fits next to the reserved one for any time, then one that ends before its seats
        # are free.
        chosen = self._first(now_s, self.waiting.firsts(widest=min(free, spare))) or self._first(
            now_s, self.waiting.firsts(widest=free, within_s=seats_at_s - now_s)
        )
        if chosen and now_s > self._promised_s[batch.batch_id]:
            self._overtaken[batch.batch_id] = self._overtaken.get(batch.batch_id, 0) + 1
        return chosen

    def _may_be_overtaken(self, batch: Batch, now_s: float, seats_at_s: float) -> bool:
        """Return whether others may start before a batch that does not fit: always until its first promised time."""
        promised_s = self._promised_s.setdefault(batch.batch_id, seats_at_s)
        late = now_s > promised_s
        return not late or self._overtaken.get(batch.batch_id, 0) < OVERTAKE_LIMIT * self.pool.total

    def _remaining_s(self, now_s: float) -> float:
        # A batch that exceeds its estimate counts as negative work. The sum is an estimate in any case.
        running_s = max(0.0, self._ends_work - now_s * self._taken)
        return (self.waiting.work_s + running_s) / self.pool.total

    def _count(self, running: _Running, sign: int) -> None:
        self._taken += sign * len(running.slots)
        self._ends_work += sign * len(running.slots) * running.ends_s


def _ends(running: _Running) -> tuple[float, int]:
    return running.ends_s, running.order


# Widest first, after batches that outlast all remaining work: longest first leaves gaps, and by width alone a long
# narrow test starts too late.
# docs/decisions/0029-widest-first.md
class BatchScheduler:
    """The event-driven batch scheduler; the module describes its rules. Equal input gives equal decisions.

    A decision examines the first batch of each width and the running batches, never all waiting ones.
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
        self._exclusive: deque[Batch] = deque()
        self._stranded: list[Batch] = []
        self._running: dict[str, _Running] = {}
        self._known: set[str] = set()
        self._alone = ""
        """Id of the running exclusive batch."""
        self._submitted = 0

    @property
    def idle(self) -> bool:
        """Whether no batch waits or runs."""
        return not self._known

    @property
    def narrowest(self) -> int:
        """Smallest number of slots that a waiting batch needs."""
        return min((lane.waiting.narrowest for lane in self._lanes.values() if lane.waiting.count), default=0)

    def submit(self, batch: Batch) -> None:
        """Queue a batch.

        Raises:
            ValueError: a batch with this id waits or runs.
        """
        if batch.batch_id in self._known:
            raise ValueError(f"batch {batch.batch_id} was submitted twice")
        self._known.add(batch.batch_id)
        self._submitted += 1
        self._queue(_with_usable_estimate(batch), self._submitted)

    def due(self) -> Iterator[Start]:
        """Yield the batches to start now."""
        while running := self._next():
            self._running[running.batch.batch_id] = running
            yield Start(batch=running.batch, slots=running.slots)

    def ended(self, batch_id: str, *, quarantined: Iterable[Slot] = ()) -> None:
        """Return the slots of a batch, except those that cannot be used again."""
        running = self._running.pop(batch_id)
        self._known.remove(batch_id)
        if self._alone == batch_id:
            self._alone = ""
        self._lanes[running.batch.shape.device].end(running)
        self.quarantine(quarantined)

    def hold(self, slots: Iterable[Slot]) -> None:
        """Start nothing on these slots until they are released."""
        for slot in slots:
            self._lanes[slot.device].pool.hold(slot)

    def release(self, slots: Iterable[Slot]) -> None:
        """Use these slots again."""
        for slot in slots:
            self._lanes[slot.device].pool.release(slot)

    def add_spare(self, slots: Iterable[Slot]) -> None:
        """Use these borrowed slots until they are recalled. Widths and promised times ignore them."""
        # Counted, a world of four ranks on two processors would wait until the machine is idle.
        for slot in slots:
            self._lanes[slot.device].pool.add_spare(slot)

    def recall(self, slots: Iterable[Slot]) -> None:
        """Start nothing more on these borrowed slots."""
        for slot in slots:
            self._lanes[slot.device].pool.recall(slot)

    def quarantine(self, slots: Iterable[Slot]) -> None:
        """Never use these slots again. Batches that run on them continue."""
        lost = tuple(slots)
        for slot in lost:
            self._lanes[slot.device].pool.quarantine(slot)
        for device in sorted({slot.device for slot in lost}):
            self._requeue(self._lanes[device])

    def withdraw(self, *, spare: str = "") -> tuple[Batch, ...]:
        """Remove all waiting batches, except those of one device type."""
        lanes = [lane for lane in self._lanes.values() if lane.device != spare]
        waiting = [batch for lane in lanes for _, batch in lane.waiting.drain()]
        others = [*self._exclusive, *self._stranded]
        waiting += [batch for batch in others if batch.shape.device != spare]
        self._exclusive = deque(batch for batch in self._exclusive if batch.shape.device == spare)
        self._stranded = [batch for batch in self._stranded if batch.shape.device == spare]
        self._known.difference_update(batch.batch_id for batch in waiting)
        return tuple(waiting)

    def stranded(self) -> tuple[Batch, ...]:
        """Remove the batches that can never start."""
        stranded = tuple(self._stranded)
        self._stranded.clear()
        self._known.difference_update(batch.batch_id for batch in stranded)
        return stranded

    def _queue(self, batch: Batch, order: int) -> None:
        lane = self._lanes.get(batch.shape.device)
        width = lane.width(batch) if lane else None
        if lane is None or width is None:
            self._stranded.append(batch)
        elif batch.exclusive:
            self._exclusive.append(batch)
        else:
            lane.waiting.add(batch, width=width, order=order)

    def _requeue(self, lane: _Lane) -> None:
        """Sort waiting batches again after slots were lost: widths on the CPU change, and some no longer fit."""
        for order, batch in lane.waiting.drain():
            self._queue(batch, order)
        for _ in range(len(self._exclusive)):
            self._queue(self._exclusive.popleft(), 0)

    def _next(self) -> _Running | None:
        now_s = self._clock()
        if self._exclusive and not self._running and self._fits(self._exclusive[0]):
            # The order has to be unique among running batches, and exclusive ones are queued without theirs.
            self._submitted += 1
            batch = self._exclusive.popleft()
            self._alone = batch.batch_id
            return self._lanes[batch.shape.device].start(self._submitted, batch, now_s)
        if self._alone:
            return None
        return next((running for lane in self._lanes.values() if (running := lane.pick(now_s))), None)

    def _fits(self, batch: Batch) -> bool:
        lane = self._lanes[batch.shape.device]
        return (lane.width(batch) or 0) <= lane.pool.free  # some may be on hold


def _with_usable_estimate(batch: Batch) -> Batch:
    # NaN compares false with everything and would leave the sorted lists in no order.
    if math.isfinite(batch.expected_s) and batch.expected_s > 0:
        return batch
    return msgspec.structs.replace(batch, expected_s=UNKNOWN_S)
