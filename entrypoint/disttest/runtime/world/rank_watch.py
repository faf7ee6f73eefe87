"""A plugin's watch over the ranks of a world, or over those that a class starts."""

from __future__ import annotations

from typing import Any

from disttest.model import HangCause
from disttest.runtime.world.attempt import Attempt


class RankWatch:
    """Looks at the ranks of one supervisor while they run tests. A plugin overrides the methods that it needs."""

    for_ranks: Any = None
    """JSON data for the plugin's part in each of the ranks."""

    def begin(self) -> None:
        """A test begins, or its ranks are awaited; they may have begun to run it."""

    def look(self, attempt: Attempt) -> HangCause | None:
        """Find out whether the ranks can go on; called after each event, and five times a second without one.

        Args:
            attempt: the running test.

        Returns:
            Why they cannot; None if they can, or if that is not known.
        """

    def explain_abort(self, attempt: Attempt, rank: int, words: str) -> tuple[str, tuple[int, ...]]:
        """Explain why a rank has aborted itself, or crashed.

        Args:
            attempt: the running test.
            rank: ended by SIGABRT or SIGSEGV.
            words: the exception of C++ that it has printed last; empty if there is none, as after SIGSEGV.

        Returns:
            The reason in place of these words, and the ranks that caused it; empty where they are not known.
        """
        del attempt, rank, words
        return "", ()

    def close(self) -> None:
        """Give back what the watch holds; the ranks are gone."""
