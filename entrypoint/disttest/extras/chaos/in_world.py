"""Result of a test under chaos: its counted calls, or the verdict of its contract."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec

from disttest.extras.chaos.case import NAME, BaselineRank, ChaosCase, ChaosSeen, Fault, FaultKind, fault_of
from disttest.extras.chaos.contract_judge import ObservedRank, judge_case
from disttest.model import Cause, Outcome, Section, TestResult
from disttest.results.findings import with_findings, with_section
from disttest.runtime.world.attempt import Attempt, RankProgress

_decoder = msgspec.json.Decoder(ChaosSeen)


class FaultAttempt(Attempt):
    """Attempt in which chaos injects a fault into one rank, and the plugin judges the reactions of the others."""

    def note_failure(self, at_s: float) -> None:
        """Do nothing: the other ranks have until the deadline, and count as hung if they still run then."""

    def note_lost_peer(self, at_s: float) -> None:
        """Do nothing, as for a failure."""

    @property
    def is_over(self) -> bool:
        """Whether the other ranks have finished; a stopped rank never finishes."""
        return all(progress.is_over or self._is_silenced(progress) for progress in self.ranks)

    @cached_property
    def _fault(self) -> Fault | None:
        return fault_of(self.test)

    def _is_silenced(self, progress: RankProgress) -> bool:
        fault = self._fault  # cached: read with each message of the world
        stopped = fault is not None and fault.kind is FaultKind.STOP and fault.rank == progress.rank
        return stopped and NAME in progress.noted


def judge_chaos(
    result: TestResult, ranks: Sequence[RankProgress], case: ChaosCase, left: Sequence[str]
) -> TestResult:
    """Replace the result of an attempt by the verdict of the contract.

    Args:
        result: the result without chaos.
        ranks: all ranks of the world.
        case: the fault and the contract.
        left: descriptions of what the ranks left behind.
    """
    seen = [_seen(progress) for progress in ranks]
    if case.fault is None:
        return _with_calls(result, ranks, seen)
    injected_at_s = _injected_at_s(ranks[case.fault.rank])
    if injected_at_s is None:
        where = f"did not reach its call {case.fault.call}, {case.struck.what}"
        return _not_shown(result, case.fault.rank, where)
    for progress in ranks:
        failed_at_s = _failed_at_s(progress)
        if failed_at_s is not None and failed_at_s < injected_at_s:
            return _not_shown(result, progress.rank, "failed before the fault was injected")
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
    observed = [
        ObservedRank(record, each, _failed_at_s(progress))
        for record, each, progress in zip(result.ranks, seen, ranks, strict=True)
    ]
    finding = judge_case(case, observed, injected_at_s, left)
    return with_findings(kept, [finding]) if finding else kept


def _seen(progress: RankProgress) -> ChaosSeen | None:
    """Decode the observations of a rank; None if it could not report any."""
    return _decoder.decode(progress.done.seen[NAME]) if progress.done and NAME in progress.done.seen else None


def _injected_at_s(progress: RankProgress) -> float | None:
    """Return when the fault was injected, on the monotonic clock; None if it was not."""
    noted = progress.noted.get(NAME)
    return None if noted is None else msgspec.json.decode(noted, type=float)


def _failed_at_s(progress: RankProgress) -> float | None:
    report = progress.verdict_report
    return report.ended_at_s if report and report.outcome.is_bad else None


def _with_calls(
    result: TestResult, ranks: Sequence[RankProgress], seen: Sequence[ChaosSeen | None]
) -> TestResult:
    baseline = tuple(
        BaselineRank(rank=progress.rank, calls=each.calls, numbers=each.numbers)
        for progress, each in zip(ranks, seen, strict=True)
        if each is not None
    )
    return with_section(result, NAME, Section(data=msgspec.to_builtins(baseline)))


def _not_shown(result: TestResult, rank: int, what: str) -> TestResult:
    """Return an error: the test did not run as in the baseline, so the contract was not put to the proof."""
    own = f" ({result.message})" if result.outcome.is_bad else ""
    return msgspec.structs.replace(
        result,
        outcome=Outcome.ERROR,
        cause=Cause.TEST,
        message=f"chaos: rank {rank} {what}: the test differs from run to run{own}",
    )
