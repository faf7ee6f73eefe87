"""What a look at the board costs while ranks are busy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from disttest.limits import TICK_S
from disttest.model import DeadlockRule
from disttest.runtime.world import deadlock_watch
from disttest.runtime.world.deadlock_watch import DeadlockWatch

RANKS = 4


class Board:
    """Slots that change when told."""

    def __init__(self) -> None:
        self.version = 0

    def slot(self, number: int) -> bytes:
        return b"%d %d" % (number, self.version)


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch):
    """A board, a function that looks at it once, and the slots that were read."""
    now_s = 0.0
    read: list[bytes] = []

    def look() -> None:
        nonlocal now_s
        now_s += TICK_S
        watch.look(attempt)

    ranks = [SimpleNamespace(rank=rank, pid=1000 + rank) for rank in range(RANKS)]
    attempt: Any = SimpleNamespace(ranks=ranks, living=lambda: ranks, deadlock=None, failed_s=None)
    monkeypatch.setattr(deadlock_watch.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(deadlock_watch, "cpu_ticks", lambda pid: round(now_s / TICK_S))  # busy
    monkeypatch.setattr(
        deadlock_watch, "read_slot", lambda slot: read.append(slot) or SimpleNamespace(waits=())
    )
    board: Any = Board()
    watch = DeadlockWatch(board, DeadlockRule.FAIL, dict)
    return board, look, read


def test_slots_that_change_are_not_read(looking):
    board, look, read = looking
    for board.version in range(10):
        look()

    assert [] == read


def test_slots_that_stay_are_read_once(looking):
    board, look, read = looking
    for _ in range(10):
        look()
    assert [board.slot(rank) for rank in range(RANKS)] == read

    board.version += 1
    look()
    look()
    assert 2 * RANKS == len(read)
