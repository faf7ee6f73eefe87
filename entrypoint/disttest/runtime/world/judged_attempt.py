"""An attempt that is over, as plugins see it: its test, its ranks, and what plugins have reported from the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from disttest.model import TestCase, WorldKind
from disttest.options.run import WorldSettings
from disttest.runtime.world.attempt import Attempt, RankProgress

T = TypeVar("T")


class JudgedAttempt:
    """An attempt that is over.

    Args:
        attempt: of the test.
        world_id: the world that ran it.
        settings: the options of the run.
        place: turns the path of a log, relative to the results directory, into one to write to.
        clear: ends the ranks; returns what they have left behind, in words.
    """

    def __init__(
        self,
        attempt: Attempt,
        world_id: str,
        settings: WorldSettings,
        *,
        place: Callable[[str], Path],
        clear: Callable[[], Sequence[str]],
    ) -> None:
        self.attempt = attempt
        self.world_id = world_id
        self.settings = settings
        self._place = place
        self._clear = clear
        self.speaks = True
        """Whether the pytest report of a rank stands for the test; if not, the result alone does."""

    @property
    def test(self) -> TestCase:
        """The test."""
        return self.attempt.test

    @property
    def ranks(self) -> Sequence[RankProgress]:
        """All ranks of the world, in order."""
        return self.attempt.ranks

    @property
    def has_ranks(self) -> bool:
        """Whether the ranks of the world ran the test; else its class or the test itself started processes."""
        return self.test.kind is WorldKind.RANKS

    @property
    def is_cancelled(self) -> bool:
        """Whether the run ended before the test did."""
        return bool(self.attempt.cancelled)

    def raw_reports(self, name: str) -> dict[int, msgspec.Raw]:
        """Rank -> what ``RankTest.report`` sent under this name, as JSON; ranks that reported nothing are left out."""
        return {
            progress.rank: progress.done.seen[name]
            for progress in self.ranks
            if progress.done is not None and name in progress.done.seen
        }

    def reports(self, name: str, type_: type[T]) -> dict[int, T]:
        """The same, decoded.

        Raises:
            msgspec.ValidationError: a rank reported something else.
        """
        return {rank: msgspec.json.decode(raw, type=type_) for rank, raw in self.raw_reports(name).items()}

    def data(self, name: str, type_: type[T]) -> T | None:
        """The data that ``disttest_test_data`` of the plugin with this name returned; None if it returned none."""
        data = self.test.data.get(name)
        return None if data is None else msgspec.convert(data, type_)

    def log_of(self, rank: int) -> Path:
        """The log of a rank; files beside it are kept with the test."""
        return self._place(self.ranks[rank].log)

    def left_behind(self) -> Sequence[str]:
        """End the ranks of the world, and say in words what they have left: processes and shared memory."""
        return self._clear()
