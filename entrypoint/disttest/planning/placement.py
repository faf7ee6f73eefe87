"""Slots and waiting batches of one device type.

Batches get slots that are near each other, and large groups stay whole for wide batches. No decision examines all
waiting batches.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from disttest.model import Batch, Slot


class SlotPool:
    """The slots of one device type, free and taken, by groups of slots that are near each other."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self._known = {slot.name: slot for slot in slots}
        self._spare: dict[str, Slot] = {}
        self._held: set[str] = set()
        self._taken: set[str] = set()
        self._free: dict[str, list[tuple[int, str]]] = {}
        self.free = 0
        for slot in self._known.values():
            self._put_back(slot)

    @property
    def total(self) -> int:
        """Number of slots that are not quarantined, without borrowed ones."""
        return len(self._known)

    def take(self, count: int) -> tuple[Slot, ...]:
        """Take free slots: from the smallest group that has enough, otherwise from the fewest groups.

        Raises:
            ValueError: fewer are free.
        """
        if count > self.free:
            raise ValueError(f"{count} slots wanted, {self.free} free")
        whole = [group for group, free in self._free.items() if len(free) >= count]
        if whole:
            # The name decides between groups of equal size, so that equal runs get equal slots.
            return self._take_from(min(whole, key=lambda group: (len(self._free[group]), group)), count)
        taken: tuple[Slot, ...] = ()
        while len(taken) < count:
            largest = min(self._free, key=lambda group: (-len(self._free[group]), group))
            taken += self._take_from(largest, min(count - len(taken), len(self._free[largest])))
        return taken

    def return_slots(self, slots: Iterable[Slot]) -> None:
        """Return slots to the pool, except those quarantined meanwhile; slots on hold stay on hold."""
        for slot in slots:
            self._taken.discard(slot.name)
            if slot.name in self._spare or (slot.name in self._known and slot.name not in self._held):
                self._put_back(slot)

    def add_spare(self, slot: Slot) -> None:
        """Add a borrowed slot until it is recalled. It does not count in ``total``."""
        if slot.name in self._spare:
            return
        self._spare[slot.name] = slot
        if slot.name not in self._taken:  # taken before it was recalled
            self._put_back(slot)

    def recall(self, slot: Slot) -> None:
        """Remove a borrowed slot. A batch that runs on it may finish."""
        if self._spare.pop(slot.name, None):
            self._withdraw(slot)

    def hold(self, slot: Slot) -> None:
        """Stop handing out a free or taken slot until it is released. It still counts in ``total``."""
        if slot.name in self._known and slot.name not in self._held:
            self._held.add(slot.name)
            self._withdraw(slot)

    def release(self, slot: Slot) -> None:
        """End the hold of a slot."""
        if slot.name not in self._held:
            return
        self._held.remove(slot.name)
        # A taken slot returns when its batch ends. Put back now, it would be handed out twice.
        if slot.name in self._known and slot.name not in self._taken:
            self._put_back(slot)

    def quarantine(self, slot: Slot) -> None:
        """Never hand out a free or taken slot again."""
        if self._known.pop(slot.name, None) or self._spare.pop(slot.name, None):
            self._withdraw(slot)

    def _withdraw(self, slot: Slot) -> None:
        free = self._free.get(slot.group, [])
        if (slot.index, slot.name) in free:
            free.remove((slot.index, slot.name))
            self.free -= 1

    def _put_back(self, slot: Slot) -> None:
        insort(self._free.setdefault(slot.group, []), (slot.index, slot.name))
        self.free += 1

    def _take_from(self, group: str, count: int) -> tuple[Slot, ...]:
        free = self._free[group]
        taken = free[:count]
        del free[:count]
        self.free -= count
        self._taken.update(name for _, name in taken)
        return tuple(self._known.get(name) or self._spare[name] for _, name in taken)


_Key = tuple[int, float, int]
"""(0 for urgent, otherwise 1; minus the expected seconds; order of submission)."""


class PendingBatches:
    """Batches by width; within a width urgent ones first, then the longest."""

    def __init__(self) -> None:
        self._by_width: dict[int, list[tuple[_Key, Batch]]] = {}
        self.work_s = 0.0
        """Expected slot-seconds of all waiting batches."""
        self.count = 0

    @property
    def narrowest(self) -> int:
        """Smallest width of a waiting batch; 0 if none waits."""
        return min(self._by_width, default=0)

    def add(self, batch: Batch, *, width: int, order: int) -> None:
        """Add a batch; ``order`` is unique and decides between equals."""
        key = (0 if batch.urgent else 1, -batch.expected_s, order)
        insort(self._by_width.setdefault(width, []), (key, batch), key=_key_of)
        self.work_s += batch.expected_s * width
        self.count += 1

    def firsts(self, *, widest: int, within_s: float | None = None) -> Iterator[tuple[int, int, Batch]]:
        """Yield ``(width, position, batch)`` of the first batch of each width up to ``widest``, widest first."""
        # With ``within_s``, only batches expected to end within that time count.
        for width in sorted(self._by_width, reverse=True):
            if width > widest:
                continue
            position = self._position(width, within_s)
            entries = self._by_width[width]
            if position < len(entries):
                yield width, position, entries[position][1]

    def remove(self, width: int, position: int) -> tuple[int, Batch]:
        """Remove a batch that ``firsts`` has just yielded; return the order that it was added with."""
        entries = self._by_width[width]
        (_, _, order), batch = entries.pop(position)
        if not entries:
            del self._by_width[width]
        self.work_s -= batch.expected_s * width
        self.count -= 1
        return order, batch

    def drain(self) -> list[tuple[int, Batch]]:
        """Remove all batches; return ``(order, batch)`` in order of submission."""
        every = [(key[2], batch) for entries in self._by_width.values() for key, batch in entries]
        self.__init__()  # type: ignore[misc]
        return sorted(every, key=lambda entry: entry[0])

    def _position(self, width: int, within_s: float | None) -> int:
        entries = self._by_width[width]
        # Usually the first batch fits, and no search is needed.
        if within_s is None or -entries[0][0][1] <= within_s:
            return 0
        # Orders are never negative, so -1 precedes every batch of exactly this length.
        urgent = bisect_left(entries, (0, -within_s, -1), key=_key_of)
        if urgent < len(entries) and entries[urgent][0][0] == 0:
            return urgent
        return bisect_left(entries, (1, -within_s, -1), key=_key_of)


def _key_of(entry: tuple[_Key, Batch]) -> _Key:
    return entry[0]
