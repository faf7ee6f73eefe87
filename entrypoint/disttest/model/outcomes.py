"""What a test came to, and how a rank's part of it ended."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What a test (or one rank's part of it) came to."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    NOT_RUN = "not_run"
    """Nothing has called it, and it was not skipped: the run stopped before (``-x``), or nobody reported the call."""

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
        """Whether nothing that a rank does after it can change what it came to; its peers may wait for it in vain."""
        return self.is_bad or self is Outcome.XFAILED


class Cause(StrEnum):
    """Whom a bad outcome accuses."""

    TEST = "test"
    INFRASTRUCTURE = "infrastructure"
    PLUGIN = "plugin"
    """A plugin failed beside the test, so that the test's own outcome is not known. It is not tried again."""


class RankEnd(StrEnum):
    """How a rank's part of a test ended."""

    REPORTED = "reported"
    """It ran the whole protocol and said so."""
    EXITED = "exited"
    """Its process left in the middle, with an exit code."""
    SIGNALLED = "signalled"
    """Its process was ended by a signal that we did not send."""
    KILLED = "killed"
    """We ended it: another rank had failed, or the deadline had passed."""
    LOST = "lost"
    """It closed its control channel, or sent a malformed message."""
