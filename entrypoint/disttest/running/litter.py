"""Shared memory that tests leave behind: named with the test that left it, and removed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec

from disttest.host.leftovers import Period, find_litter, names_in_use, scan_shm
from disttest.model import TestResult
from disttest.running.sweep import remove_and_tell

_PAUSE_S = 1.0
"""A look at what all processes have open costs more than a small world does: not oftener than this."""


class Litter:
    """What has come into ``/dev/shm`` since the run began, against the tests that ran."""

    def __init__(self, note: Callable[[str, str], None], now: Callable[[], float]) -> None:
        """Remember what is there already.

        Args:
            note: takes a message and the node id of the test that it is about.
            now: the run's clock.
        """
        self._note = note
        self._now = now
        self._before = scan_shm()
        self._periods: dict[tuple[str, int], Period] = {}
        self._last: dict[str, tuple[str, int]] = {}
        self._looked_s = -_PAUSE_S
        self._told: set[str] = set()

    def ran(self, result: TestResult) -> None:
        """A test has been judged."""
        key = self._last[result.world_id] = (result.nodeid, result.attempt)
        self._periods[key] = Period(
            nodeid=result.nodeid,
            began_at_s=result.started_at_s,
            ended_at_s=self._now(),
            pids=tuple(rank.pid for rank in result.ranks),
        )

    def pids(self, world_id: str) -> tuple[int, ...]:
        """The ranks of a world, as far as they are known."""
        key = self._last.get(world_id)
        return self._periods[key].pids if key else ()

    def left(self, world_id: str) -> None:
        """A world has ended; what its tear-down made is of its last test."""
        key = self._last.pop(world_id, None)
        if key is not None:
            self._periods[key] = msgspec.structs.replace(self._periods[key], ended_at_s=self._now())
        if time.monotonic() - self._looked_s >= _PAUSE_S:
            self.sweep()

    def sweep(self) -> None:
        """Report and remove what our tests have left and nobody uses."""
        present = scan_shm()
        uid = os.geteuid()
        if not find_litter(self._before, present, (), in_use=(), uid=uid):
            return
        self._looked_s = time.monotonic()
        in_use = names_in_use()
        found = find_litter(self._before, present, tuple(self._periods.values()), in_use=in_use, uid=uid)
        for each in found:
            if each.tests and each.entry.name not in self._told:
                self._told.add(each.entry.name)
                self._note(f"{each}{remove_and_tell(each)}", each.tests[0] if len(each.tests) == 1 else "")
