"""Outcome of a test whose ranks have different outcomes: one table, read from top to bottom. Pure data.

``make docs`` writes this table, and the outcome of each pair of ranks, to ``docs/verdicts.md``.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from disttest.model import Frozen, Outcome, RankEnd, RankRecord, Ruling, TestResult, rank_names

STRICT_XPASS = "[XPASS(strict)]"
"""Prefix of pytest's message for a passed test with a strict xfail mark."""
NO_TEST_RAN = "no test ran"
"""Prefix of the message of a test that no rank has run."""


class RankState(StrEnum):
    """State of one rank as the verdict sees it. The value is its word in messages."""

    PASSED = "passed"
    PARTLY = "passed without some subtests"
    """Its call passed; subtests in it were skipped or failed as expected."""
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    STRICT = "xpassed (strict)"
    NOT_RUN = "did not run it"
    """Its protocol is over, and there is no report of the call."""
    FAILED = "failed"
    ERROR = "error"
    """Its set-up or tear-down failed."""
    DIED = "died"
    """Its process exited or was killed, but not by disttest, or its channel broke."""
    HUNG = "still running at the deadline"
    ENDED = "still running without an xfail mark"
    """disttest ended it because of a peer, or because the run was cancelled."""
    ENDED_XFAIL = "still running, marked xfail"
    """The same, and the test is expected to fail in this rank too."""


class Rule(Frozen):
    """A row of the table."""

    ruling: Ruling
    outcome: Outcome | None
    """None for the outcome of the culprit."""
    why: str
    some: frozenset[RankState] = frozenset()
    """At least one rank has one of these states; empty for no condition."""
    only: frozenset[RankState] = frozenset(RankState)
    """Every rank has one of these states."""
    cancelled: bool = False
    """Whether the row requires a cancelled run."""
    marked: bool = False
    """Whether the row requires the mark ``ranks_may_differ``."""

    def applies(self, states: Collection[RankState], *, cancelled: bool, may_differ: bool) -> bool:
        """Whether this row applies; the first such row decides."""
        if (self.cancelled and not cancelled) or (self.marked and not may_differ):
            return False
        return self.only.issuperset(states) and (not self.some or not self.some.isdisjoint(states))


_BAD = frozenset({RankState.FAILED, RankState.ERROR, RankState.DIED})
_MARKED_XFAIL = frozenset({RankState.XFAILED, RankState.XPASSED, RankState.STRICT, RankState.ENDED_XFAIL})
_ENDED = frozenset({RankState.ENDED, RankState.ENDED_XFAIL})


def _all(ruling: Ruling, state: RankState, outcome: Outcome, why: str) -> Rule:
    only = frozenset({state})
    return Rule(ruling=ruling, outcome=outcome, only=only, why=why)


def _marked(ruling: Ruling, state: RankState, outcome: Outcome, why: str) -> Rule:
    return Rule(ruling=ruling, outcome=outcome, some=frozenset({state}), marked=True, why=why)


# The order matters: the first row that applies decides.
# Every rank counts. torch's harness checks rank 0 only, so that a rank that dies of SIGSEGV passes; launchers lose
# exit codes.
# docs/decisions/0017-every-rank-counts.md
RULES = (
    Rule(
        ruling=Ruling.CULPRIT,
        outcome=None,
        some=_BAD,
        why="A test has failed if one rank has: the earliest is the culprit, a lost connection to a peer or an expired "
        "wait for one comes last. "
        "A crash is never expected.",
    ),
    Rule(
        ruling=Ruling.HANG,
        outcome=Outcome.FAILED,
        some=frozenset({RankState.HUNG}),
        why="A rank that did not end within the limit has not shown anything.",
    ),
    Rule(
        ruling=Ruling.EXPECTED,
        outcome=Outcome.XFAILED,
        some=frozenset({RankState.XFAILED}),
        only=_MARKED_XFAIL,
        why="All ranks have the mark, and the failure of one fails the test, as expected. Ranks that waited for it "
        "were ended. A strict mark asks for no more.",
    ),
    Rule(
        ruling=Ruling.CANCELLED,
        outcome=Outcome.ERROR,
        cancelled=True,
        why="The run was stopped before all ranks had finished; no rank caused it.",
    ),
    Rule(
        ruling=Ruling.UNFINISHED,
        outcome=Outcome.ERROR,
        some=_ENDED,
        only=frozenset(RankState) - {RankState.XFAILED},
        why="A rank was ended before it had finished, and no rank has failed.",
    ),
    _all(Ruling.AGREED, RankState.PASSED, Outcome.PASSED, "Every rank ran the whole protocol."),
    _all(
        Ruling.AGREED,
        RankState.PARTLY,
        Outcome.PASSED,
        "As in pytest: subtests that skip do not make the test a skip.",
    ),
    _all(Ruling.AGREED, RankState.SKIPPED, Outcome.SKIPPED, "No rank wanted to run it."),
    _all(Ruling.AGREED, RankState.XPASSED, Outcome.XPASSED, "No rank failed, although it was expected."),
    _all(
        Ruling.STRICT,
        RankState.STRICT,
        Outcome.FAILED,
        "As in pytest: a strict xfail that passes is a failure.",
    ),
    _all(
        Ruling.NOT_RUN,
        RankState.NOT_RUN,
        Outcome.NOT_RUN,
        "Without a call nothing was tested (`--setup-only`, a plugin that runs the protocol and does not report). If "
        "this is all that a run has, it ends with code 5.",
    ),
    _marked(
        Ruling.UNFINISHED,
        RankState.ENDED,
        Outcome.ERROR,
        "The ranks may differ, and one without the mark was ended before it had finished: it might have failed.",
    ),
    _marked(
        Ruling.EXPECTED,
        RankState.XFAILED,
        Outcome.XFAILED,
        "The ranks may differ: one failed as expected.",
    ),
    _marked(
        Ruling.STRICT,
        RankState.STRICT,
        Outcome.FAILED,
        "The ranks may differ: none failed, and one was strictly expected to.",
    ),
    _marked(
        Ruling.AGREED,
        RankState.XPASSED,
        Outcome.XPASSED,
        "The ranks may differ: none failed, one was expected to.",
    ),
    _marked(
        Ruling.AGREED, RankState.PASSED, Outcome.PASSED, "The ranks may differ: those that ran it passed."
    ),
    _marked(
        Ruling.AGREED, RankState.PARTLY, Outcome.PASSED, "The ranks may differ: those that ran it passed."
    ),
    _marked(Ruling.AGREED, RankState.SKIPPED, Outcome.SKIPPED, "The ranks may differ: none ran it."),
    Rule(
        ruling=Ruling.DISAGREED,
        outcome=Outcome.FAILED,
        why="Ranks that skip what others run, or expect a failure where others do not, have run different tests: the "
        "outcome of the test is unknown.",
    ),
)


def rule_for(states: Collection[RankState], *, cancelled: bool = False, may_differ: bool = False) -> Rule:
    """Return the row that decides: the first that applies. The last one always does."""
    return next(rule for rule in RULES if rule.applies(states, cancelled=cancelled, may_differ=may_differ))


_BY_OUTCOME = {
    Outcome.FAILED: RankState.FAILED,
    Outcome.ERROR: RankState.ERROR,
    Outcome.SKIPPED: RankState.SKIPPED,
    Outcome.XFAILED: RankState.XFAILED,
}


def state_of(record: RankRecord) -> RankState:
    """Classify a rank."""
    outcome = record.outcome
    # Before the outcome: a rank may report a passed call and crash in its tear-down.
    if record.has_died:
        return RankState.DIED
    # Before the hang: a rank that failed and then did not end has shown its failure.
    if outcome in (Outcome.FAILED, Outcome.ERROR):
        return _BY_OUTCOME[outcome]
    if record.hung:
        return RankState.HUNG
    if outcome is None:
        return _without_outcome(record)
    if outcome is Outcome.PASSED:
        return RankState.PARTLY if record.subtests_skipped else RankState.PASSED
    if outcome is Outcome.XPASSED:
        return RankState.STRICT if record.strict else RankState.XPASSED
    return _BY_OUTCOME[outcome]


def _without_outcome(record: RankRecord) -> RankState:
    if record.end is not RankEnd.KILLED:
        return RankState.NOT_RUN
    return RankState.ENDED_XFAIL if record.xfail else RankState.ENDED


# Disagreement is a failure: if some ranks skip and others run, the result means nothing, whatever rank 0 did.
# docs/decisions/0019-ranks-must-agree.md
def describe_disagreement(records: Collection[RankRecord]) -> str:
    """``ranks disagree: ranks 0, 2 skipped, rank 1 passed``."""
    by_state: dict[RankState, list[int]] = {}
    for record in records:
        by_state.setdefault(state_of(record), []).append(record.rank)
    parts = (f"{rank_names(ranks)} {state}" for state, ranks in by_state.items())
    return f"ranks disagree: {', '.join(parts)}"


def is_disagreement(result: TestResult) -> bool:
    """Whether a test failed because its ranks have different outcomes, none of which is a failure."""
    return result.outcome is Outcome.FAILED and result.ruling is Ruling.DISAGREED


def disagreement(records: Collection[RankRecord], *, may_differ: bool) -> str:
    """Describe how ranks without failures disagree; empty if they agree, or if one has failed."""
    rule = rule_for({state_of(record) for record in records}, may_differ=may_differ) if records else None
    return describe_disagreement(records) if rule and rule.ruling is Ruling.DISAGREED else ""
