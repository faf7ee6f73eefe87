"""What one attempt of a test came to."""

from __future__ import annotations

import msgspec

from disttest.model.frozen import Count, Frozen, Moment, Seconds
from disttest.model.outcomes import Cause, Outcome
from disttest.model.rank_record import RankRecord
from disttest.model.recorded import Recorded
from disttest.model.sections import Section
from disttest.model.seen_calls import PluginFinding


class TestResult(Frozen):
    """What one attempt of a test came to."""

    __test__ = False

    nodeid: str
    outcome: Outcome
    cause: Cause | None = None
    attempt: Count = 1
    started_at_s: Moment = 0.0
    duration_s: Seconds = 0.0
    phase: str = "call"
    """The phase that decided."""
    message: str = ""
    """One line that names the culprit rank and says what it did."""
    details: str = ""
    culprit: int | None = None
    victims: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    """Things worth knowing that do not change the outcome: ranks that skipped, leaks."""
    ranks: tuple[RankRecord, ...] = ()
    world_id: str = ""
    """The world that ran it; empty for ordinary tests and for skips decided before a world started."""
    after: tuple[str, ...] = ()
    """Of a test that failed: the tests that ran before it in the same processes, in order, by the ids that select them."""
    torch_outcome: Outcome | None = None
    """What torch's own harness would have said of a test of kind ``main``, where that is known."""
    findings: tuple[PluginFinding, ...] = ()
    """The findings of plugins."""
    sections: dict[str, Section] = msgspec.field(default_factory=dict)
    """Name of a plugin -> its part of the reports."""
    by_main: Recorded = Recorded()
    """Warnings and facts of the process that ran the test, where that is not a rank."""

    @property
    def is_false_green_avoided(self) -> bool:
        """Red here, where torch's own harness would have said passed or skipped."""
        return self.outcome.is_bad and self.torch_outcome is not None and not self.torch_outcome.is_bad

    @property
    def is_vacuous(self) -> bool:
        """Skipped here, since no rank would run, which is where torch's own harness says passed."""
        return self.outcome is Outcome.SKIPPED and self.torch_outcome is Outcome.PASSED
