"""Result of one attempt of a test."""

from __future__ import annotations

import msgspec

from disttest.model.frozen import Count, Frozen, Moment, Seconds
from disttest.model.outcomes import Cause, Outcome
from disttest.model.rank_record import RankRecord
from disttest.model.recorded import Recorded
from disttest.model.sections import Section
from disttest.model.seen_calls import PluginFinding


class TestResult(Frozen):
    """Result of one attempt of a test."""

    __test__ = False

    nodeid: str
    outcome: Outcome
    cause: Cause | None = None
    attempt: Count = 1
    started_at_s: Moment = 0.0
    duration_s: Seconds = 0.0
    phase: str = "call"
    """The phase that decided the outcome."""
    message: str = ""
    """One line that names the culprit rank and says what it did."""
    details: str = ""
    culprit: int | None = None
    victims: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    """Remarks that do not change the outcome: ranks that skipped, leaks."""
    ranks: tuple[RankRecord, ...] = ()
    world_id: str = ""
    """The world that ran it; empty for ordinary tests and for skips decided before a world started."""
    after: tuple[str, ...] = ()
    """For a failed test: the tests that ran before it in the same processes, in order, by the ids that select them."""
    torch_outcome: Outcome | None = None
    """Outcome by the rules of torch's own harness for a test of kind ``main``, if it is known."""
    findings: tuple[PluginFinding, ...] = ()
    """Findings of plugins."""
    sections: dict[str, Section] = msgspec.field(default_factory=dict)
    """Plugin name -> its section of the reports."""
    by_main: Recorded = Recorded()
    """Warnings and facts of the process that ran the test, if that is not a rank."""

    @property
    def is_false_green_avoided(self) -> bool:
        """Whether the test failed although torch's own harness would have passed or skipped it."""
        return self.outcome.is_bad and self.torch_outcome is not None and not self.torch_outcome.is_bad

    @property
    def is_vacuous(self) -> bool:
        """Whether the test is skipped because it has no ranks here, while torch's own harness passes it."""
        return self.outcome is Outcome.SKIPPED and self.torch_outcome is Outcome.PASSED
