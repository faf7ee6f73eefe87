"""Hooks of the proof of deadlocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disttest.hookspecs import hookimpl
from disttest.options.option import Option, of_every_run
from disttest.options.values import member_of

if TYPE_CHECKING:
    import pytest

    from disttest.options.run import WorldSettings
    from disttest.runtime.rank.waits import WatchedRank
    from disttest.runtime.world.evidence import EvidenceSource
    from disttest.runtime.world.rank_watch import RankWatch


class DeadlockRule(StrEnum):
    """Treatment of a test whose ranks provably wait for each other."""

    FAIL = "fail"
    """It ends immediately, as a hang."""
    REPORT = "report"
    """It continues to its time limit, with a note."""
    OFF = "off"
    """No watch looks for deadlocks."""


DEADLOCK = of_every_run(
    "deadlock",
    member_of(DeadlockRule),
    "A test in which no rank can continue: fail immediately, report it and wait for the limit, or do not check (off).",
    default=DeadlockRule.FAIL,
    repeated=True,
)


_NAME = "deadlock"


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Return ``--deadlock``."""
    return (DEADLOCK,)


@hookimpl
def disttest_load_parts(config: pytest.Config) -> None:
    """Import the watch and its part in ranks."""
    del config
    # Before the first fork: each rank and each world would pay for the import otherwise.
    from disttest.plugins.deadlock import in_rank, watch  # noqa: F401


@hookimpl
def disttest_around_worlds(settings: WorldSettings) -> AbstractContextManager[object] | None:
    """Observe torch while worlds are forked; otherwise each of them would need 3 ms to start it."""
    from disttest.runtime.world.store import has_store

    if DEADLOCK.of(settings) is DeadlockRule.OFF or not has_store():
        return None
    from disttest import observe

    return observe.observing()


@hookimpl
def disttest_watch_ranks(
    settings: WorldSettings, size: int, evidence: Callable[[], Mapping[int, EvidenceSource]]
) -> RankWatch | None:
    """Watch for deadlocks."""
    rule = DEADLOCK.of(settings)
    if rule is DeadlockRule.OFF:
        return None
    from disttest import observe
    from disttest.plugins.deadlock.watch import DeadlockWatch, WaitBoard
    from disttest.runtime.world.store import has_store

    if has_store():
        observe.install()  # before the fork, so that ranks need not do it
    return DeadlockWatch(WaitBoard(size), evidence, ends=rule is DeadlockRule.FAIL)


@hookimpl
def disttest_join_watch(place: int, data: Mapping[str, Any]) -> WatchedRank | None:
    """Write to the board of the watch."""
    board = data.get(_NAME)
    if board is None:
        return None
    from disttest.plugins.deadlock.in_rank import WaitingRank

    return WaitingRank(Path(board), place)
