"""Waiting batches for slots of one device type, stored so that no decision examines all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from disttest.model import Batch

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
        if within_s is None or -entries[0][0][1] <= within_s:
            return 0
        urgent = bisect_left(entries, (0, -within_s, -1), key=_key_of)
        if urgent < len(entries) and entries[urgent][0][0] == 0:
            return urgent
        return bisect_left(entries, (1, -within_s, -1), key=_key_of)


def _key_of(entry: tuple[_Key, Batch]) -> _Key:
    return entry[0]
