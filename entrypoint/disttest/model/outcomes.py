"""Outcomes of tests, and the ways in which a rank's part of a test ends."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """Outcome of a test, or of one rank's part of it."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    NOT_RUN = "not_run"
    """The test was neither called nor skipped: the run stopped before (``-x``), or no process reported its call."""

    @property
    def has_run(self) -> bool:
        """Whether the test was called, or should have been."""
        return self not in (Outcome.SKIPPED, Outcome.NOT_RUN)

    @property
    def is_bad(self) -> bool:
        """Whether it makes the run red."""
        return self in (Outcome.FAILED, Outcome.ERROR)

    @property
    def is_final(self) -> bool:
        """Whether later actions of the rank cannot change it; its peers may wait for the rank in vain."""
        return self.is_bad or self is Outcome.XFAILED


class Cause(StrEnum):
    """The party to blame for a bad outcome."""

    TEST = "test"
    INFRASTRUCTURE = "infrastructure"
    PLUGIN = "plugin"
    """A plugin failed next to the test, so the test's own outcome is unknown. There is no retry."""


class RankEnd(StrEnum):
    """The way in which a rank's part of a test ended."""

    REPORTED = "reported"
    """The rank ran the whole protocol and reported it."""
    EXITED = "exited"
    """Its process exited before the end of the test."""
    SIGNALLED = "signalled"
    """A signal that disttest did not send ended its process."""
    KILLED = "killed"
    """disttest ended it because another rank had failed, or the deadline had passed."""
    LOST = "lost"
    """It closed its control channel, or sent a malformed message."""
