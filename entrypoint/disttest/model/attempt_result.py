"""Result of one attempt of a test, with the sections and findings of plugins."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from disttest.model.frozen import Count, Frozen, Moment, Seconds
from disttest.model.rank_record import Cause, Outcome, RankRecord, Recorded


class Edge(Frozen):
    """A wait of one thread of a rank: an edge of a wait-for graph."""

    rank: int
    what: str
    """``all_reduce #3 of group default``, ``recv #1 from rank 0``, ``key 'ready' of a store``."""
    where: str = ""
    """``file:line`` of the call in the user's code."""
    since_s: Seconds = 0.0
    """Seconds of waiting when the graph was made."""
    ranks: tuple[int, ...] = ()
    """The ranks for which it waits."""
    reason: str = ""
    """State of those ranks: ``which has finished the test``."""
    group: str = ""
    seq: int = 0
    op: str = ""


class WaitGraph(Frozen):
    """Ranks, and the ranks for which each of them waits. The HTML page draws it."""

    edges: tuple[Edge, ...]
    """Edges in order of rank."""
    finished: tuple[int, ...] = ()
    """Ranks that have finished the test, or whose processes have ended."""


class Section(Frozen):
    """A plugin's part of the reports of a test. Every report shows it without knowing the plugin."""

    title: str = ""
    """One line. If it is empty, only ``results.json`` contains the section."""
    lines: tuple[str, ...] = ()
    waits: WaitGraph | None = None
    data: Any = None
    """JSON data for programs that read ``results.json``."""


class HangCause(Frozen):
    """Reason why the ranks of a test cannot make progress, found by the watch of a plugin while they waited."""

    name: str
    """Name of the plugin, and the word in reports for a test that was ended for this reason."""
    message: str
    """One line: the finding."""
    advice: str = ""
    """The next step."""
    culprit: int | None = None
    """The rank for which all others wait, if it is exactly one."""
    ends: bool = False
    """Whether it ends the test; otherwise the test continues until its time limit."""
    is_expected: bool = False
    """Whether the test expects it, and passes because of it."""
    section: Section = Section()
    """The plugin's section of the result."""

    @property
    def of_rank(self) -> str:
        """Message of a rank that was ended for this reason."""
        if self.is_expected:
            return f"was in the {self.name} that the test expects, and was ended by disttest"
        return f"waited in a {self.name}, ended by disttest"


FROM_ROOT = frozenset({"broadcast", "scatter"})
TO_ROOT = frozenset({"reduce", "gather", "gather_into_tensor"})
"""Names of the collectives in which one rank sends to all others, and of those in which one receives from all."""


class WindowEdge(StrEnum):
    """Position relative to the time in which a call is pending."""

    OPENS = "opens"
    """The call is issued."""
    INSIDE = "inside"
    CLOSES = "closes"
    """The call has been waited for."""


def short_place(file: str, line: int) -> str:
    """Return ``test_step.py:39``; empty without a file."""
    return f"{file.rpartition('/')[2]}:{line}" if file else ""


class SeenCall(Frozen):
    """A call to `torch.distributed` as seen by a plugin, or an action next to one."""

    what: str
    """``all_reduce SUM of float32[4], #3 of group default``."""
    file: str = ""
    """File of the line in the user's code: absolute, as seen by the run; empty if the call did not come from Python."""
    line: int = 0
    decides: bool = False
    """Whether the finding is about this call; the others show its surroundings."""
    window: WindowEdge | None = None
    """For a race: the position in the time in which a call is pending."""
    same: bool | None = None
    """Whether all ranks had the same values there; None if they were not compared."""

    @property
    def where(self) -> str:
        """``test_step.py:39``, or nothing."""
        return short_place(self.file, self.line)


class RankCalls(Frozen):
    """Calls of one rank, in the order in which it issued them."""

    rank: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    calls: tuple[SeenCall, ...]


class PluginFinding(Frozen):
    """A finding of a plugin in a test, whatever the outcome of the ranks."""

    finder: str
    """The plugin, or its part, that made the finding: ``order``."""
    kind: str
    """The finder's word for the kind: ``mismatch``, ``group-order``, …"""
    message: str
    """One line: the rank, its action, and the place."""
    effect: str
    """Consequence, and the affected backends."""
    advice: str
    """The next step."""
    fails: bool = False
    """Whether it fails the test; otherwise it is a warning next to the verdict."""
    orders: tuple[RankCalls, ...] = ()
    """The calls concerned, rank by rank."""
    found_by: str = ""
    """Name of the finder in reports; empty for ``finder``."""
    failure: str = ""
    """Word for the kind of failure if the finding fails a test; empty for ``finding``."""
    section: str = ""
    """Section of the reports that lists the finding if it fails no test; empty for the finder's own."""

    @property
    def source(self) -> str:
        """The finder's name in reports."""
        return self.found_by or self.finder


class Ruling(StrEnum):
    """The rule that decided the outcome of an attempt from its ranks: a row of ``docs/verdicts.md``."""

    CULPRIT = "culprit"
    HANG = "hang"
    EXPECTED = "expected"
    CANCELLED = "cancelled"
    UNFINISHED = "unfinished"
    AGREED = "agreed"
    STRICT = "strict"
    NOT_RUN = "not run"
    DISAGREED = "disagreed"


class TestResult(Frozen):
    """Result of one attempt of a test."""

    __test__ = False

    nodeid: str
    outcome: Outcome
    cause: Cause | None = None
    attempt: Count = 1
    started_at_s: Moment = 0.0
    duration_s: Seconds = 0.0
    ruling: Ruling | None = None
    """None if no rank has run the test."""
    phase: str = "call"
    """The phase that decided the outcome; ``collect`` for a file that skipped itself, whose tests are unknown."""
    message: str = ""
    """One line that names the culprit rank and says what it did."""
    message_id: str = ""
    """Id of the message of a failed test, which ``disttest explain ID`` explains; empty if it has none."""
    details: str = ""
    culprit: int | None = None
    victims: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    """Remarks that do not change the outcome: ranks that skipped, leaks."""
    superseded: tuple[str, ...] = ()
    """Notes on failures in reused ranks, after each of which the test ran again in new ranks of the same attempt."""
    ranks: tuple[RankRecord, ...] = ()
    world_id: str = ""
    """The world that ran it; empty for ordinary tests and for skips decided before a world started."""
    # Small in total: a failure ends its world, so a run stores each id here at most once.
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
