"""The result of a test under chaos: its calls, or what its contract makes of what the ranks did."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from disttest.chaos.contract_judge import Harmed, judge_case
from disttest.chaos.seen import ChaosSeen
from disttest.model import Cause, ChaosCase, Outcome, TestResult, UnharmedRank
from disttest.results.sanitized import with_findings
from disttest.runtime.rank.rank_chaos import NAME
from disttest.runtime.world.attempt import RankProgress

_decoder = msgspec.json.Decoder(ChaosSeen)


def judge_chaos(
    result: TestResult, ranks: Sequence[RankProgress], case: ChaosCase, left: Sequence[str]
) -> TestResult:
    """What the attempt came to.

    Args:
        result: what it would be without chaos.
        ranks: all of the world.
        case: what was done.
        left: what they have left behind, in words.
    """
    seen = [_seen(progress) for progress in ranks]
    if case.fault is None:
        return _with_calls(result, ranks, seen)
    struck_at_s = ranks[case.fault.rank].struck_at_s
    if struck_at_s is None:
        where = f"did not come to its call {case.fault.call}, {case.struck.what}"
        return _not_shown(result, case.fault.rank, where)
    for progress in ranks:
        failed_at_s = _failed_at_s(progress)
        if failed_at_s is not None and failed_at_s < struck_at_s:
            return _not_shown(result, progress.rank, "failed before the fault struck")
    kept = msgspec.structs.replace(
        result,
        outcome=Outcome.PASSED,
        cause=None,
        phase="call",
        message="",
        details="",
        culprit=None,
        victims=(),
    )
    harmed = [
        Harmed(record, each, _failed_at_s(progress))
        for record, each, progress in zip(result.ranks, seen, ranks, strict=True)
    ]
    finding = judge_case(case, harmed, struck_at_s, left)
    return with_findings(kept, [finding]) if finding else kept


def _seen(progress: RankProgress) -> ChaosSeen | None:
    """What a rank has reported; None where it could not."""
    return _decoder.decode(progress.done.seen[NAME]) if progress.done and NAME in progress.done.seen else None


def _failed_at_s(progress: RankProgress) -> float | None:
    report = progress.verdict_report
    return report.ended_at_s if report and report.outcome.is_bad else None


def _with_calls(
    result: TestResult, ranks: Sequence[RankProgress], seen: Sequence[ChaosSeen | None]
) -> TestResult:
    unharmed = tuple(
        UnharmedRank(rank=progress.rank, calls=each.calls, numbers=each.numbers)
        for progress, each in zip(ranks, seen, strict=True)
        if each is not None
    )
    return msgspec.structs.replace(result, unharmed=unharmed)


def _not_shown(result: TestResult, rank: int, what: str) -> TestResult:
    """Whether the contract holds is open: the test did not run as it had unharmed."""
    own = f" ({result.message})" if result.outcome.is_bad else ""
    return msgspec.structs.replace(
        result,
        outcome=Outcome.ERROR,
        cause=Cause.TEST,
        message=f"chaos: rank {rank} {what}: the test differs from run to run{own}",
    )
