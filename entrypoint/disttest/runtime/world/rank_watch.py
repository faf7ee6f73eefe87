"""Interface for a plugin that watches the ranks of a world, or the ranks that a test class starts."""

from __future__ import annotations

from typing import Any

from disttest.model import HangCause
from disttest.runtime.world.attempt import Attempt


class RankWatch:
    """Watches the ranks of one supervisor while they run tests. A plugin overrides the methods that it needs."""

    for_ranks: Any = None
    """JSON data for the plugin's part in each rank."""

    def begin(self) -> None:
        """A test begins, or its ranks are awaited; they may be running it already."""

    def look(self, attempt: Attempt) -> HangCause | None:
        """Find out whether the ranks can make progress; called after each event, and five times a second without one.

        Args:
            attempt: the running test.

        Returns:
            The reason why they cannot; None if they can, or if that is unknown.
        """

    def explain_abort(self, attempt: Attempt, rank: int, words: str) -> tuple[str, tuple[int, ...]]:
        """Explain why a rank aborted or crashed.

        Args:
            attempt: the running test.
            rank: a rank that was ended by SIGABRT or SIGSEGV.
            words: the last C++ exception that it printed; empty if there is none, as after most SIGSEGVs.

        Returns:
            The calls that do not match, and the ranks that caused it; both empty if unknown.
        """
        del attempt, rank, words
        return "", ()

    def close(self) -> None:
        """Release the resources of the watch; the ranks have ended."""
