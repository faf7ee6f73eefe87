"""Result of a test under chaos: its counted calls, or the verdict of its contract."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import msgspec

from disttest.extras.chaos.case import (
    NAME,
    BaselineRank,
    ChaosCase,
    ChaosSeen,
    Fault,
    FaultKind,
    SeenError,
    Survival,
    fault_of,
)
from disttest.model import (
    Cause,
    Outcome,
    PluginFinding,
    RankCalls,
    RankEnd,
    RankRecord,
    Section,
    SeenCall,
    TestResult,
    rank_names,
)
from disttest.results.findings import with_findings, with_section
from disttest.results.hang_findings import last_call
from disttest.results.verdict import SYMPTOM
from disttest.runtime.world.attempt import Attempt, RankProgress


class Breach(StrEnum):
    """Ways to break a contract, gravest first."""

    HUNG = "hung"
    SILENT = "silent"
    WRONG_NUMBERS = "wrong-numbers"
    DIED = "died"
    FAILED = "failed"
    HANDLER = "handler"
    OTHER_ERROR = "other-error"
    LATE = "late"
    LEFT_BEHIND = "left-behind"


_EXPLANATIONS = {
    Breach.HUNG: (
        "The job holds its machines until it is cancelled.",
        "Give every wait for a peer a time limit, and do not wait for peers while cleaning up after an error.",
    ),
    Breach.SILENT: (
        "A run that has lost a rank looks green, and its results are used.",
        "Let communication errors propagate, or hand them to the code that decides; do not catch `Exception` around them.",
    ),
    Breach.WRONG_NUMBERS: (
        "The job goes on with wrong values, and nothing reports it.",
        "Restore all state that the interrupted step has changed, and repeat the whole step.",
    ),
    Breach.DIED: (
        "No process is left that could report the error or recover.",
        "Let the error reach Python; do not exit or abort in a watchdog or a handler.",
    ),
    Breach.FAILED: ("The job ends although it promises to go on.", "See the failure of that rank below."),
    Breach.HANDLER: (
        "An error of the handler hides the first one, and the work of the handler is not done.",
        "Fix the handler; it runs only when something breaks, so no other test covers it.",
    ),
    Breach.OTHER_ERROR: (
        "The log points to the wrong place, and code that retries after communication errors does not retry.",
        "Check for the communication error before using results.",
    ),
    Breach.LATE: (
        "Each lost rank stops the whole job for that time.",
        "Let the broken connection reach the waiting rank; do not retry or sleep before checking for it.",
    ),
    Breach.LEFT_BEHIND: (
        "It holds memory, ports or GPUs that the next job needs.",
        "End helper processes with their rank (PR_SET_PDEATHSIG), and release resources in a `finally`.",
    ),
}

_TIMED_OUT = r"timed? ?out|timeout"
_OF_PEERS = re.compile(
    rf"{SYMPTOM.pattern}|{_TIMED_OUT}|\bDist\w*Error\b|\bNCCL\b|gloo|peer|rendezvous", re.IGNORECASE
)
"""Words by which an exception reports that a peer is gone or silent."""
_OWN_MISTAKES = (
    "KeyError",
    "AttributeError",
    "NameError",
    "UnboundLocalError",
    "TypeError",
    "IndexError",
    "ZeroDivisionError",
)
"""Exceptions that are raised by mistake, never on purpose, while handling another error."""


class ObservedRank(NamedTuple):
    """A rank in the test with the fault."""

    record: RankRecord
    seen: ChaosSeen | None
    failed_at_s: float | None = None
    """When its test failed, on the monotonic clock."""


class _RankBreach(NamedTuple):
    kind: Breach
    did: str


def judge_case(
    case: ChaosCase, ranks: Sequence[ObservedRank], injected_at_s: float, left: Sequence[str] = ()
) -> PluginFinding | None:
    """Return a finding if the contract is broken.

    Args:
        case: the fault and the contract.
        ranks: records of all ranks.
        injected_at_s: when the fault was injected, on the monotonic clock.
        left: descriptions of processes and shared memory that were left behind.
    """
    # First the times at which a rank could notice something: the fault, and the end of each rank that noticed
    # it.
    broke_at_s = [
        injected_at_s,
        *(error.ended_s for each in ranks if (error := _of_peers(each, injected_at_s))),
    ]
    # Then each rank alone: only these times connect it with the others.
    breaches = {
        each.record.rank: breach for each in ranks for breach in _judge_rank(case, each, sorted(broke_at_s))
    }
    fault = case.fault
    assert fault is not None
    # Last, since only all ranks together show it: a call that is repeated is no swallowed error.
    if fault.kind is FaultKind.RAISE and _has_tried_again(case, ranks):
        breaches = {rank: breach for rank, breach in breaches.items() if breach.kind is not Breach.SILENT}
    if left:
        breaches.setdefault(fault.rank, _RankBreach(Breach.LEFT_BEHIND, f"left behind: {'; '.join(left)}"))
    return _finding(case, breaches) if breaches else None


def _has_tried_again(case: ChaosCase, ranks: Sequence[ObservedRank]) -> bool:
    """Whether all ranks passed and the rank whose call raised has repeated it."""
    assert case.fault is not None
    victim = next(each for each in ranks if each.record.rank == case.fault.rank)
    passed = all(each.record.outcome is Outcome.PASSED for each in ranks)
    return passed and victim.seen is not None and victim.seen.handed >= case.calls


def _judge_rank(case: ChaosCase, rank: ObservedRank, broke_at_s: Sequence[float]) -> Iterator[_RankBreach]:
    assert case.fault is not None
    fault, record = case.fault, rank.record
    wanted = case.contract.of(fault.kind)
    is_faulty = record.rank == fault.rank
    # Such a rank cannot react.
    if is_faulty and fault.kind in (FaultKind.KILL, FaultKind.STOP):
        return
    # No failure of a peer ends a rank here (FaultAttempt), so a rank that disttest killed had hung until the
    # deadline.
    if record.end is RankEnd.KILLED:
        yield _RankBreach(Breach.HUNG, _how_it_hung(record))
    elif record.has_died:
        yield _RankBreach(Breach.DIED, record.message)
    elif is_faulty and fault.kind is FaultKind.RAISE:
        if record.outcome is Outcome.PASSED and not wanted.goes_on:
            yield _RankBreach(Breach.SILENT, "passed although its own call raised")
    elif wanted.goes_on:
        yield from _judge_survivor(case, rank)
    elif record.outcome is not None and record.outcome.is_bad:
        yield from _judge_error(case, rank, wanted, broke_at_s)
    elif record.rank in case.needing:
        yield _RankBreach(Breach.SILENT, _how_it_passed(rank))


def _how_it_hung(record: RankRecord) -> str:
    call = last_call(record)
    inside = f", its last call: {call}" if call else ""
    return f"hung until it was killed{inside}"


def _how_it_passed(rank: ObservedRank) -> str:
    if rank.seen is not None and rank.seen.errors:
        error = rank.seen.errors[0]
        return f"passed, though {error.what} had raised {_short(error.text)}"
    return f"{rank.record.outcome or 'passed'} as if nothing had happened"


def _judge_survivor(case: ChaosCase, rank: ObservedRank) -> Iterator[_RankBreach]:
    record = rank.record
    if record.outcome is not Outcome.PASSED:
        yield _RankBreach(Breach.FAILED, f"{record.outcome or 'did not finish'}: {_short(record.message)}")
        return
    wanted = case.numbers.get(str(record.rank), {})
    got = rank.seen.numbers if rank.seen else {}
    for name, value in wanted.items():
        if name not in got:
            yield _RankBreach(Breach.WRONG_NUMBERS, f"recorded no {name}, but {value} without the fault")
            return
        if got[name] != value:
            yield _RankBreach(
                Breach.WRONG_NUMBERS, f"recorded {name} = {got[name]}, but {value} without the fault"
            )
            return


def _judge_error(
    case: ChaosCase, rank: ObservedRank, wanted: Survival, broke_at_s: Sequence[float]
) -> Iterator[_RankBreach]:
    """Yield the breach in how a rank failed.

    Args:
        broke_at_s: when the fault was injected, and when each rank noticed it. A rank that notices ends, and its peers
            learn of the fault from that.
    """
    record = rank.record
    if wanted is Survival.ERROR:
        return
    error = _of_peers(rank, broke_at_s[0])
    raised = rank.seen.raised if rank.seen else ()
    if not any(map(_OF_PEERS.search, (record.message, *raised))):
        after = f", after {error.what} had raised {_short(error.text)}" if error else ""
        yield _RankBreach(
            Breach.OTHER_ERROR, f"raised {_short(record.message)}, which does not mention a lost peer{after}"
        )
        return
    # No observed call raised, as in a wait in C++. Then nothing shows when the rank noticed.
    if error is None:
        return
    if record.message.partition(":")[0].rpartition(".")[2] in _OWN_MISTAKES:
        yield _RankBreach(
            Breach.HANDLER, f"raised {_short(record.message)} while it handled {_short(error.text)}"
        )
        return
    contract = case.contract
    limit_s = contract.within_s + (0 if wanted is Survival.CONNECTION_ERROR else case.limit_s)
    # A rank notices a fault after it happened, and not before its own wait begins.
    last_s = max(at_s for at_s in broke_at_s if at_s < error.ended_s)
    took_s = error.ended_s - max(last_s, error.began_s)
    # A broken connection is reported immediately, however long a busy machine takes for it: only time-outs can be
    # late.
    if took_s > limit_s and not SYMPTOM.search(error.text):
        yield _RankBreach(Breach.LATE, f"raised {_short(error.text)} only after {took_s:.1f} s")
    elif rank.failed_at_s is not None and (went_on_s := rank.failed_at_s - error.ended_s) > limit_s:
        yield _RankBreach(Breach.LATE, f"went on for {went_on_s:.1f} s after {_short(error.text)}")


def _of_peers(rank: ObservedRank, injected_at_s: float) -> SeenError | None:
    """Return the first communication error that the rank saw after the fault."""
    errors = rank.seen.errors if rank.seen else ()
    later = (error for error in errors if error.ended_s >= injected_at_s)
    return next((error for error in later if _OF_PEERS.search(error.text)), None)


# A sample: `[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer`.
_SOURCE = re.compile(r"\[/?[\w./-]+\.(?:cc|cpp|h):\d+\] ")
"""Location in gloo's own sources, which gloo puts in front of its errors."""


def _short(text: str, most: int = 160) -> str:
    text = _SOURCE.sub("", text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


_DONE = {
    FaultKind.KILL: "was killed",
    FaultKind.STOP: "was stopped",
    FaultKind.RAISE: "raised an exception",
    FaultKind.DELAY: "came late",
}


def describe_fault(case: ChaosCase) -> str:
    """Format ``rank 1 was killed before all_reduce #5 of group default (its call 5) at test_step.py:12``."""
    assert case.fault is not None
    fault, struck = case.fault, case.struck
    when = "during" if fault.during else "before"
    delay = f" by {case.delay_s:g} s" if fault.kind is FaultKind.DELAY else ""
    where = f" at {struck.where}" if struck.where else ""
    return f"rank {fault.rank} {_DONE[fault.kind]}{delay} {when} {struck.what} (its call {fault.call}){where}"


def describe_wanted(case: ChaosCase) -> str:
    """Describe the reaction that the contract requires."""
    assert case.fault is not None
    contract = case.contract
    limit = f"{case.limit_s:g} s, its group's limit, and {contract.within_s:g} s"
    return {
        Survival.CONNECTION_ERROR: f"ranks that wait for it raise a communication error within {contract.within_s:g} s",
        Survival.TIMEOUT: f"ranks that wait for it raise a communication error within {limit}",
        Survival.ERROR: f"ranks that wait for it raise within {limit}",
        Survival.PASSES: "all ranks pass, with the values of the run without faults",
        Survival.RECOVERS: "the other ranks pass, with the values of the run without faults",
    }[contract.of(case.fault.kind)]


def _finding(case: ChaosCase, breaches: Mapping[int, _RankBreach]) -> PluginFinding:
    assert case.fault is not None
    by_breach: dict[_RankBreach, list[int]] = defaultdict(list)
    for rank in sorted(breaches):
        by_breach[breaches[rank]].append(rank)
    order = list(Breach)
    ranked = sorted(by_breach, key=lambda breach: order.index(breach.kind))
    gravest = ranked[0].kind
    effect, advice = _EXPLANATIONS[gravest]
    but = "; ".join(f"{rank_names(by_breach[breach])} {breach.did}" for breach in ranked)
    others = [(rank, breach.did) for rank, breach in sorted(breaches.items()) if rank != case.fault.rank]
    return PluginFinding(
        finder=NAME,
        found_by=NAME,
        failure="contract",
        kind=gravest,
        message=f"{describe_fault(case)}; wanted: {describe_wanted(case)}; but {but}",
        effect=effect,
        advice=advice,
        fails=True,
        orders=(
            RankCalls(rank=case.fault.rank, calls=(case.struck,)),
            *(RankCalls(rank=rank, calls=(SeenCall(what=did, decides=True),)) for rank, did in others),
        ),
    )


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
    # The order matters: without the fault, or with a failure before it, the contract was not put to the
    # proof.
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
    # The core blames the faulty rank and counts its death as a failure. Both are planned.
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
