"""How long a world waits for ranks that leave one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from disttest import limits
from disttest.runtime.world import dismissal
from disttest.runtime.world.dismissal import wait_for_ends


class Leaves:
    """A rank that has ended after some limits."""

    def __init__(self, after: int) -> None:
        self.after = after

    def poll(self) -> object:
        return None if self.after > 0 else "ended"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many ranks each wait was for."""
    waits: list[int] = []

    def wait_all(ranks: Sequence[Leaves], _limit_s: float) -> None:
        waits.append(len(ranks))
        for rank in ranks:
            rank.after -= 1

    monkeypatch.setattr(dismissal, "wait_all", wait_all)
    return waits


def dismissed(*after: int, most: int) -> int:
    """Return the number of ranks that are left."""
    ranks: Any = [Leaves(each) for each in after]
    wait_for_ends(ranks, 1.0, most=most)
    return sum(rank.poll() is None for rank in ranks)


def test_the_limit_begins_again_while_ranks_leave(waits: list[int]) -> None:
    assert 0 == dismissed(1, 1, 2, 3, most=4)
    assert [4, 2, 1] == waits


def test_ranks_that_stay_end_the_wait(waits: list[int]) -> None:
    assert 2 == dismissed(1, 100, 100, most=4)
    assert [3, 2] == waits


def test_a_small_world_has_one_limit(waits: list[int]) -> None:
    assert 1 == dismissed(1, 2, most=1)
    assert [2] == waits


def test_all_limits_together_end_before_the_world_counts_as_stuck() -> None:
    assert dismissal._MOST_LIMITS * limits.RANKS_LEAVE_S < limits.WORLD_SILENCE_S
