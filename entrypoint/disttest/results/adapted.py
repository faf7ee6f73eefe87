"""Verdict of a test whose main process starts the ranks. Pure; builds on :mod:`.verdict`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from disttest.model import (
    LONE_PROCESS,
    Cause,
    HangCause,
    Outcome,
    RankEnd,
    RankRecord,
    TestCase,
    TestResult,
    VerdictRule,
    WorldKind,
)
from disttest.results.exit_codes import NEVER_JOINED, NO_RANKS
from disttest.results.verdict import judge

LENIENT_NOTE = "torch's own rules would have passed this test"
NEW_RANKS = "got new ranks, because the main process had changed since the last ones started"


def judge_adapted(
    test: TestCase,
    main: RankRecord,
    ranks: Sequence[RankRecord],
    *,
    rule: VerdictRule,
    torch_outcome: Outcome | None,
    cause: HangCause | None = None,
    attempt: int,
    started_at_s: float,
    duration_s: float,
    world_id: str,
    cancelled: str = "",
) -> TestResult:
    """Judge one attempt from the reports of the main process and the records of its ranks.

    A failed rank fails the test even if the main process passes, unless the main process was expected to fail. If the
    ranks passed, or there are none, the main process decides.
    """

    def ruled(records: Sequence[RankRecord]) -> TestResult:
        return judge(
            test,
            records,
            attempt=attempt,
            started_at_s=started_at_s,
            duration_s=duration_s,
            world_id=world_id,
            cancelled=cancelled,
            cause=cause,
        )

    # A test that fails before it joins its ranks explains why they were left running.
    waited_for = not any(rank.message == NEVER_JOINED for rank in ranks)
    by_ranks = ruled(ranks) if ranks and (waited_for or not _is_bad(main)) else None
    main_decides = main.outcome in (Outcome.XFAILED, Outcome.XPASSED) or rule is VerdictRule.TORCH
    if by_ranks is not None and by_ranks.outcome.is_bad and not main_decides:
        return _with_torch(by_ranks, torch_outcome)
    if (
        test.kind is WorldKind.MAIN
        and not ranks
        and main.outcome is Outcome.PASSED
        and rule is VerdictRule.STRICT
    ):
        # torch's harness passes a class that starts no rank; an empty setUp() is enough for that.
        main = msgspec.structs.replace(main, outcome=Outcome.FAILED, message=NO_RANKS)
        torch_outcome = Outcome.PASSED
    named = msgspec.structs.replace(main, rank=LONE_PROCESS) if test.kind is WorldKind.PROCESS else main
    decided = _by_main(ruled([named]), main, ranks)
    if by_ranks is not None and not decided.outcome.is_bad:
        decided = msgspec.structs.replace(decided, notes=(*decided.notes, *by_ranks.notes))
    return _with_torch(decided, torch_outcome)


def _is_bad(main: RankRecord) -> bool:
    return main.outcome is None or main.outcome.is_bad or main.end is not RankEnd.REPORTED


def _by_main(result: TestResult, main: RankRecord, ranks: Sequence[RankRecord]) -> TestResult:
    """Return the main process's own outcome."""
    bad = result.outcome.is_bad
    shown = (main, *ranks) if bad or not ranks else tuple(ranks)
    return msgspec.structs.replace(
        result,
        details=main.details if bad else "",
        culprit=None,
        victims=(),
        ranks=shown,
        cause=Cause.TEST if bad and main.end is not RankEnd.KILLED else result.cause,
    )


def _with_torch(result: TestResult, torch_outcome: Outcome | None) -> TestResult:
    if torch_outcome is None or torch_outcome.is_bad == result.outcome.is_bad:
        return msgspec.structs.replace(result, torch_outcome=torch_outcome)
    notes = (*result.notes, LENIENT_NOTE) if result.outcome.is_bad else result.notes
    return msgspec.structs.replace(result, torch_outcome=torch_outcome, notes=notes)
