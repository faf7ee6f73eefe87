"""Ranks that are reused for several tests of a class: which tests they can run, and whether they may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from disttest.plugins.launching_classes.inheritance import Inheritance
from disttest.plugins.launching_classes.team import HostedAttempt, Team
from disttest.runtime.messages.protocol import Variables


class RanksWereUsed(Exception):
    """A test has failed in reused ranks: their outcome does not count."""


class RankRequest(NamedTuple):
    """A test's request for ranks."""

    cls: type
    own_classes: tuple[type, ...]
    """The class and its bases, without torch's."""
    size: int
    keywords: tuple[tuple[str, Any], ...]
    """Keyword arguments of the method that each rank runs."""
    method: str
    file_name: str
    """Path of the file for the rendezvous."""
    run: Callable[[int, str, str, object], None]
    """Called in each rank, with its number, the method, the file and its pipe."""

    @property
    def sharers(self) -> object:
        """Key of the tests that may share ranks: this class, started in this way."""
        return self.cls, self.size, self.keywords


class ReusedTeam:
    """The ranks that are reused, if there are any."""

    def __init__(self) -> None:
        self.team: Team | None = None
        self.outdated = ""
        """Name of a difference between the state of new ranks and that of the living ones."""
        self._inheritance: Inheritance | None = None
        self._tests = 0

    def may_run(self, request: RankRequest) -> bool:
        """Return whether the living ranks may run this test as well. If not, :attr:`outdated` may give the reason."""
        team, inheritance = self.team, self._inheritance
        self.outdated = ""
        if team is None or inheritance is None or team.owner != request.sharers or not team.is_alive():
            return False
        self.outdated = inheritance.changed()
        return not self.outdated

    def replace(self, request: RankRequest, team: Team) -> Inheritance:
        """Replace the ranks by a team that is about to be forked; return its inheritance."""
        self.team, self._tests = team, 0
        team.owner = request.sharers
        self._inheritance = Inheritance(request.own_classes)
        return self._inheritance

    def begin_test(self, team: Team) -> Variables:
        """Start one more test in the team; return the environment variables that have changed since."""
        self._tests += 1
        team.reset_handles()
        return self._inheritance.take_variables() if self._inheritance else ()

    def must_be_run_again(self, attempt: HostedAttempt, *, is_good: bool) -> bool:
        """Return whether the outcome must be ignored, because reuse of the ranks may have caused it.

        Args:
            attempt: the attempt in the reused ranks.
            is_good: whether it passed, or all of them skipped.
        """
        cleaning = (rank.verdict_report for rank in attempt.ranks if rank.done is None)
        was_reused = self._tests > 1 or any(each and not each.outcome.is_final for each in cleaning)
        return was_reused and not is_good and not attempt.cancelled

    def finish_test(self, attempt: HostedAttempt) -> Team | None:
        """Finish a test; return the team if it must not be used again."""
        team = self.team
        assert team is not None
        for rank, progress in zip(team.ranks, attempt.ranks, strict=True):
            if progress.done is not None and progress.done.stays:
                rank.note_end(progress.done.exit_code or 0)
        if all(progress.done is not None and progress.done.stays for progress in attempt.ranks):
            return None
        self.team = None
        return team
