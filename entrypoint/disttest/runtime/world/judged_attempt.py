"""A finished attempt in the form that plugins see: its test, its ranks, and the reports of plugins from the ranks."""

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
    """A finished attempt.

    Args:
        attempt: the attempt.
        world_id: the world that ran it.
        settings: the options of the run.
        place: maps the path of a log, relative to the results directory, to the file to write.
        clear: ends the ranks and describes the processes and shared memory that they left.
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
        """Whether the pytest report of a rank represents the test; otherwise the result alone does."""

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
        """Whether the ranks of the world ran the test; otherwise its class or the test started the processes."""
        return self.test.kind is WorldKind.RANKS

    @property
    def is_cancelled(self) -> bool:
        """Whether the run ended before the test did."""
        return bool(self.attempt.cancelled)

    def raw_reports(self, name: str) -> dict[int, msgspec.Raw]:
        """Map each rank to the JSON that ``RankTest.report`` sent under this name; silent ranks are left out."""
        return {
            progress.rank: progress.done.seen[name]
            for progress in self.ranks
            if progress.done is not None and name in progress.done.seen
        }

    def reports(self, name: str, type_: type[T]) -> dict[int, T]:
        """Decode the reports of :meth:`raw_reports`.

        Raises:
            msgspec.ValidationError: a report does not have this type.
        """
        return {rank: msgspec.json.decode(raw, type=type_) for rank, raw in self.raw_reports(name).items()}

    def data(self, name: str, type_: type[T]) -> T | None:
        """Return the data that the plugin's ``disttest_test_data`` attached to the test, or None."""
        data = self.test.data.get(name)
        return None if data is None else msgspec.convert(data, type_)

    def log_of(self, rank: int) -> Path:
        """The log of a rank; files in the same folder are kept with the test."""
        return self._place(self.ranks[rank].log)

    def left_behind(self) -> Sequence[str]:
        """End the ranks of the world, and describe the processes and the shared memory that they left."""
        return self._clear()
