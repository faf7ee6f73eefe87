"""From what every rank did to one outcome with a culprit. Pure, and the heart of "no false green".

A test passes only if every rank reported the whole protocol and none of them failed. The earliest
failure that we did not cause ourselves is the culprit; whoever failed or was ended after it is a victim.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from disttest.model import Cause, Outcome, RankEnd, RankRecord, TestCase, TestResult
from disttest.results.explain import explain

STRICT_XPASS = "[XPASS(strict)]"

# How a rank words it when a peer went away: a consequence, however early it is noticed.
SYMPTOM = re.compile(
    r"connection (closed|reset) by (peer|remote)|connection refused|broken pipe|socket (closed|error)"
    r"|remote process exited|connectFullMesh failed|recvValue failed|failed to recv, got 0 bytes",
    re.IGNORECASE,
)


def judge(
    test: TestCase,
    ranks: Sequence[RankRecord],
    *,
    attempt: int,
    started_at_s: float,
    duration_s: float,
    world_id: str,
    cancelled: str = "",
) -> TestResult:
    """Judge one attempt.

    Args:
        test: what was run.
        ranks: one record for each rank, in order of rank.
        attempt: counted from 1.
        started_at_s: start of the attempt, on the run's clock.
        duration_s: wall time of the attempt.
        world_id: the world that ran it.
        cancelled: why the world was told to stop; empty if it was not.
    """
    suspects = sorted((r for r in ranks if _accused(r)), key=_by_guilt)
    outcome, phase, message, culprit = _decide(
        test, ranks, suspects, duration_s=duration_s, cancelled=cancelled
    )
    return TestResult(
        nodeid=test.nodeid,
        outcome=outcome,
        cause=_cause(outcome, culprit, cancelled=cancelled),
        attempt=attempt,
        started_at_s=started_at_s,
        duration_s=duration_s,
        phase=phase,
        message=message,
        details=culprit.details if culprit else "",
        culprit=culprit.rank if culprit else None,
        victims=_victims(ranks, culprit) if outcome.is_bad else (),
        notes=_notes(ranks, outcome),
        ranks=tuple(ranks),
        world_id=world_id,
    )


_Decision = tuple[Outcome, str, str, RankRecord | None]


def _decide(
    test: TestCase,
    ranks: Sequence[RankRecord],
    suspects: Sequence[RankRecord],
    *,
    duration_s: float,
    cancelled: str,
) -> _Decision:
    if suspects:
        culprit = suspects[0]
        outcome = _outcome_of(culprit)
        return outcome, culprit.phase, _accusation(culprit, len(ranks)), culprit
    hung = [r for r in ranks if r.hung]
    if hung:
        return _explain_hang(test, ranks, hung)
    xfailed = [r for r in ranks if r.outcome is Outcome.XFAILED]
    if xfailed:
        return Outcome.XFAILED, "call", xfailed[0].message, None
    ended_by_us = [r for r in ranks if r.end is RankEnd.KILLED]
    if ended_by_us or cancelled:
        why = cancelled or "its world was ended"
        return Outcome.ERROR, "call", f"did not finish after {duration_s:.1f} s: {why}", None
    return _peaceful(ranks)


def _peaceful(ranks: Sequence[RankRecord]) -> _Decision:
    """The decision when every rank reported and none failed."""
    outcomes = {r.outcome for r in ranks}
    if outcomes == {Outcome.SKIPPED}:
        return Outcome.SKIPPED, ranks[0].phase, ranks[0].message, None
    if outcomes == {Outcome.XPASSED}:
        if any(r.message.startswith(STRICT_XPASS) for r in ranks):
            message = f"passed on all {len(ranks)} ranks, although it is marked as a strict xfail"
            reason = ranks[0].message.removeprefix(STRICT_XPASS).strip()
            return Outcome.FAILED, "call", f"{message}: {reason}" if reason else message, None
        return Outcome.XPASSED, "call", ranks[0].message, None
    return Outcome.PASSED, "call", "", None


def _died(record: RankRecord) -> bool:
    return record.end in (RankEnd.EXITED, RankEnd.SIGNALLED, RankEnd.LOST)


def _accused(record: RankRecord) -> bool:
    return _died(record) or (record.outcome is not None and record.outcome.is_bad)


def _by_guilt(record: RankRecord) -> tuple[bool, float, int]:
    symptom = not _died(record) and SYMPTOM.search(record.message) is not None
    after_s = record.failed_after_s if record.failed_after_s is not None else float("inf")
    return symptom, after_s, record.rank


def _outcome_of(culprit: RankRecord) -> Outcome:
    """In pytest's words: a failure is of the test's own call, everything else is an error."""
    return Outcome.ERROR if _died(culprit) else culprit.outcome or Outcome.ERROR


def _accusation(culprit: RankRecord, size: int) -> str:
    who = f"rank {culprit.rank} of {size}"
    if _died(culprit):
        return f"{who} {culprit.message}"
    where = "" if culprit.phase == "call" else f" in {culprit.phase}"
    return f"{who} failed{where}: {culprit.message}"


def _explain_hang(test: TestCase, ranks: Sequence[RankRecord], hung: Sequence[RankRecord]) -> _Decision:
    finding = explain(ranks)
    if finding is not None:
        message = f"{finding.message} (timed out after {test.timeout_s:g} s)"
        return (
            Outcome.FAILED,
            hung[0].phase,
            message,
            None if finding.culprit is None else ranks[finding.culprit],
        )
    names = ",".join(str(r.rank) for r in hung)
    finished = [str(r.rank) for r in ranks if not r.hung]
    message = f"timed out after {test.timeout_s:g} s: rank {names} of {len(ranks)} still in {hung[0].phase}"
    if finished:
        message += f"; rank {','.join(finished)} had finished"
    return Outcome.FAILED, hung[0].phase, message, hung[0] if len(hung) == 1 else None


def _victims(ranks: Sequence[RankRecord], culprit: RankRecord | None) -> tuple[int, ...]:
    if culprit is None:
        return ()
    hurt = (r for r in ranks if r is not culprit and (r.end is RankEnd.KILLED or _accused(r)))
    return tuple(r.rank for r in hurt)


def _cause(outcome: Outcome, culprit: RankRecord | None, *, cancelled: str) -> Cause | None:
    if not outcome.is_bad:
        return None
    return Cause.INFRASTRUCTURE if cancelled and culprit is None else Cause.TEST


def _notes(ranks: Sequence[RankRecord], outcome: Outcome) -> tuple[str, ...]:
    notes = []
    skipped = [r for r in ranks if r.outcome is Outcome.SKIPPED]
    if skipped and outcome is not Outcome.SKIPPED:
        names = ",".join(str(r.rank) for r in skipped)
        notes.append(f"rank {names} skipped it: {skipped[0].message}")
    reasons = {r.message for r in skipped}
    if outcome is Outcome.SKIPPED and len(reasons) > 1:
        notes.append("the ranks gave different reasons: " + "; ".join(sorted(reasons)))
    notes += _leak_notes(ranks)
    return tuple(notes)


def _leak_notes(ranks: Sequence[RankRecord]) -> list[str]:
    by_leak: dict[str, list[int]] = {}
    for record in ranks:
        for leak in record.leaks:
            by_leak.setdefault(leak, []).append(record.rank)
    return [f"rank {','.join(map(str, who))} leaked {leak}" for leak, who in by_leak.items()]
