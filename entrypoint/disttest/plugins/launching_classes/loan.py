"""Ranks that stay and are lent to one test of a class after another: which they are, and whether they may be lent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from disttest.plugins.launching_classes.inheritance import Inheritance
from disttest.plugins.launching_classes.team import HostedAttempt, Team
from disttest.runtime.messages.protocol import Variables


class RanksWereUsed(Exception):
    """A test has failed in ranks that had run another one: what they came to does not count."""


class Loan(NamedTuple):
    """What a test wants ranks for."""

    cls: type
    own_classes: tuple[type, ...]
    """The class and its bases, without torch's."""
    size: int
    keywords: tuple[tuple[str, Any], ...]
    """For the method that each rank runs."""
    method: str
    file_name: str
    """Where the ranks find each other."""
    run: Callable[[int, str, str, object], None]
    """Called in each rank, with its number, the method, the file and its pipe."""

    @property
    def borrower(self) -> object:
        """For whom ranks may stay: this class, started in this way."""
        return self.cls, self.size, self.keywords


class LentTeam:
    """The ranks that are lent, if there are any."""

    def __init__(self) -> None:
        self.team: Team | None = None
        self.outdated = ""
        """What new ranks would have inherited that those which stayed had not, by name."""
        self._inheritance: Inheritance | None = None
        self._tests = 0

    def may_run(self, loan: Loan) -> bool:
        """Whether the living ranks may run this test, too; if not, :attr:`outdated` may say why."""
        team, inheritance = self.team, self._inheritance
        self.outdated = ""
        if team is None or inheritance is None or team.owner != loan.borrower or not team.is_alive():
            return False
        self.outdated = inheritance.changed()
        return not self.outdated

    def replace(self, loan: Loan, team: Team) -> Inheritance:
        """A new team, whose ranks are about to be forked; what they inherit."""
        self.team, self._tests = team, 0
        team.owner = loan.borrower
        self._inheritance = Inheritance(loan.own_classes)
        return self._inheritance

    def lend(self, team: Team) -> Variables:
        """One more test begins in it; what its ranks have to be told of the environment."""
        self._tests += 1
        team.show_anew()
        return self._inheritance.take_variables() if self._inheritance else ()

    def must_be_run_again(self, attempt: HostedAttempt, *, is_good: bool) -> bool:
        """Whether what the ranks came to says nothing of the test, as it may have to do with their being lent.

        Args:
            attempt: in the lent ranks.
            is_good: whether it passed, or all of them skipped.
        """
        cleaning = (rank.verdict_report for rank in attempt.ranks if rank.done is None)
        was_reused = self._tests > 1 or any(each and not each.outcome.is_final for each in cleaning)
        return was_reused and not is_good and not attempt.cancelled

    def take_back(self, attempt: HostedAttempt) -> Team | None:
        """A test is over; the team, if it is not to be used again."""
        team = self.team
        assert team is not None
        for rank, progress in zip(team.ranks, attempt.ranks, strict=True):
            if progress.done is not None and progress.done.stays:
                rank.note_end(progress.done.exit_code or 0)
        if all(progress.done is not None and progress.done.stays for progress in attempt.ranks):
            return None
        self.team = None
        return team
