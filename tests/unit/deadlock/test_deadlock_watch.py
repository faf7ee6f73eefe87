"""What a look at the board costs while ranks are busy, and who counts as busy."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from disttest.limits import TICK_S
from disttest.plugins.deadlock import watch as deadlock_watch
from disttest.plugins.deadlock.watch import DeadlockWatch

RANKS = 4


class Board:
    """Slots that change when told."""

    path = "of the board"

    def __init__(self) -> None:
        self.version = 0

    def slot(self, number: int) -> bytes:
        return b"%d %d" % (number, self.version)


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch):
    """A board, a function that looks at it once, the slots that were read, and what processes spend between looks."""
    now_s = 0.0
    read: list[bytes] = []
    spends: dict[int, int] = {}

    def look() -> None:
        nonlocal now_s
        now_s += TICK_S
        watch.look(attempt)

    ranks = [SimpleNamespace(rank=rank, pid=1000 + rank) for rank in range(RANKS)]
    attempt: Any = SimpleNamespace(ranks=ranks, living=lambda: ranks, failed_s=None)
    monkeypatch.setattr(deadlock_watch, "monotonic", lambda: now_s)
    monkeypatch.setattr(deadlock_watch, "cpu_ticks", lambda pid: round(now_s / TICK_S) * spends.get(pid, 20))
    monkeypatch.setattr(
        deadlock_watch, "read_slot", lambda slot: read.append(slot) or SimpleNamespace(waits=())
    )
    board: Any = Board()
    watch = DeadlockWatch(board, dict, ends=True)
    return board, look, read, spends


def test_slots_that_change_are_not_read(looking):
    board, look, read, _ = looking
    for board.version in range(10):
        look()

    assert [] == read


def test_slots_that_stay_are_read_once(looking):
    board, look, read, _ = looking
    for _ in range(10):
        look()
    assert [board.slot(rank) for rank in range(RANKS)] == read

    board.version += 1
    look()
    look()
    assert 2 * RANKS == len(read)


@pytest.mark.parametrize(("spent", "judged"), [(0, 1), (1, 1), (2, 0)])
def test_a_rank_that_spends_hardly_any_time_is_still(looking, monkeypatch, spent, judged):
    """In hundredths of a second between two looks: gloo's threads look at their sockets all the time."""
    _, look, _, spends = looking
    spends |= {1000 + rank: 0 for rank in range(RANKS)} | {1002: spent}
    looks = []
    monkeypatch.setattr(DeadlockWatch, "_judge", lambda *_: looks.append(1))
    for _ in range(6):
        look()

    assert len(looks) == judged


@pytest.mark.parametrize(("rests_at_look", "rests", "pauses"), [(1, True, 0), (10, True, 9), (11, False, 10)])
def test_ranks_need_not_be_at_rest_at_the_same_time(monkeypatch, rests_at_look, rests, pauses):
    """Rank 1000 rests at the first look alone, another one at a later look."""
    looks: Counter[int] = Counter()
    slept: list[float] = []

    def is_at_rest(pid: int) -> bool:
        looks[pid] += 1
        return looks[pid] == {1000: 1}.get(pid, rests_at_look)

    monkeypatch.setattr(deadlock_watch, "is_at_rest", is_at_rest)
    monkeypatch.setattr(deadlock_watch, "sleep", slept.append)

    assert deadlock_watch.come_to_rest([1000, 1001]) is rests
    assert pauses == len(slept)
