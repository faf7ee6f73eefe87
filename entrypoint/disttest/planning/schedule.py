"""Which gang starts next on which slots. Pure: slots and gangs in, starts out; no clock, no process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from disttest.model import Frozen, Gang, Slot


class Start(Frozen):
    """A decision: run this gang on these slots now."""

    gang: Gang
    slots: tuple[Slot, ...]


class Scheduler(Protocol):
    """What the controller asks; it reports back every gang that ended."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""

    def submit(self, gang: Gang) -> None:
        """Queue a gang: a new one, or what is left of one whose world broke."""

    def due(self) -> Iterable[Start]:
        """Yield the gangs to start now; each is counted as running from here on."""

    def ended(self, gang_id: str, *, quarantined: Iterable[Slot] = ()) -> None:
        """Take back the slots of a gang, but for those that can not be used again."""


class LargestFirst:
    """Wide gangs first, then in order of submission; whatever fits the free slots starts.

    A gang wider than the whole machine runs alone on all of it. Fewer slots than ranks are only ever
    CPU slots: the collection has refused what needs more GPUs than there are.
    """

    def __init__(self, slots: Iterable[Slot]) -> None:
        self._slots = tuple(slots)
        self._free = list(self._slots)
        self._waiting: list[Gang] = []
        self._running: dict[str, tuple[Gang, tuple[Slot, ...]]] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._waiting and not self._running

    def submit(self, gang: Gang) -> None:
        """Queue a gang."""
        self._waiting.append(gang)
        self._waiting.sort(key=lambda waiting: -waiting.shape.size)

    def due(self) -> Iterable[Start]:
        """Yield the gangs to start now."""
        for gang in tuple(self._waiting):
            slots = self._slots_for(gang)
            if slots:
                self._waiting.remove(gang)
                self._free = [slot for slot in self._free if slot not in slots]
                self._running[gang.gang_id] = (gang, slots)
                yield Start(gang=gang, slots=slots)

    def ended(self, gang_id: str, *, quarantined: Iterable[Slot] = ()) -> None:
        """Take back the slots of a gang."""
        _, slots = self._running.pop(gang_id)
        lost = set(quarantined)
        self._slots = tuple(slot for slot in self._slots if slot not in lost)
        self._free = [slot for slot in self._slots if slot in self._free or slot in slots]

    def _slots_for(self, gang: Gang) -> tuple[Slot, ...]:
        of_kind = [slot for slot in self._slots if slot.device == gang.shape.device]
        free = [slot for slot in self._free if slot.device == gang.shape.device]
        if any(running.exclusive for running, _ in self._running.values()):
            return ()
        if gang.exclusive and self._running:
            return ()
        needed = min(gang.shape.size, len(of_kind))
        return tuple(free[:needed]) if len(free) >= needed else ()
