"""From the records of all ranks to one outcome with a culprit. Pure, and the core of "no false green".

:mod:`.rulings` has the table of outcomes. The culprit is the earliest failure that disttest did not cause; ranks that
failed or were ended after it are victims. A lost connection counts last: a rank often notices the death of its peer
before the supervisor does.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence

from disttest.model import (
    LONE_PROCESS,
    Cause,
    HangCause,
    Outcome,
    RankEnd,
    RankRecord,
    Ruling,
    TestCase,
    TestResult,
    process_name,
    rank_names,
    rank_of,
)
from disttest.results.hang_findings import Finding, explain, last_call, whereabouts
from disttest.results.rulings import (
    NO_TEST_RAN,
    STRICT_XPASS,
    RankState,
    Rule,
    describe_disagreement,
    rule_for,
    state_of,
)

_ADVICE = (
    "Ranks must agree on what they run: decide a skip or an xfail by a value that is the same in all "
    "ranks, or mark the test with @pytest.mark.ranks_may_differ"
)

_UNRENDERED = "a repr() or str() in it did not return; the stack of the rank shows where it waits"

# Messages about a lost peer: a consequence, however early it is noticed.
# gloo: "Connection closed by peer [127.0.0.1]:4711". TCPStore: "recvValue failed", "failed to recv, got 0
# bytes". NCCL: "remote process exited or there was a network error".
SYMPTOM = re.compile(
    r"connection (closed|reset) by (peer|remote)|connection refused|broken pipe|socket (closed|error)"
    r"|remote process exited|connectFullMesh failed|recvValue failed|failed to recv, got 0 bytes",
    re.IGNORECASE,
)

# Messages about an expired wait for a peer: a consequence if another rank failed itself.
# gloo: "Timed out waiting 1000ms for recv operation to complete". TCPStore: "wait timeout after 300000ms,
# keys: /a", "Timed out after 301 seconds waiting for clients. 1/2 clients joined."
_GAVE_UP = re.compile(
    r"timed out waiting \d+ms for (send|recv)|application timeout caused pair closure"
    r"|failed to pass monitoredBarrier|reached monitoredBarrier, but received errors"
    r"|wait timeout after \d+ms|timed out after \d+ (milli)?seconds waiting for clients",
    re.IGNORECASE,
)

# Place of a frame: pytest's "test_x.py:19: AssertionError", Python's '  File "x.py", line 3, in f'.
_PLACE = re.compile(r'^(\S[^:\n]*\.py:\d+): |^\s*(File "[^"\n]+", line \d+)', re.MULTILINE)

# gloo's message when a rank receives more than its tensor can hold; gloo aborts the process afterwards.
SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")


def judge(
    test: TestCase,
    ranks: Sequence[RankRecord],
    *,
    attempt: int,
    started_at_s: float,
    duration_s: float,
    world_id: str,
    cancelled: str = "",
    cause: HangCause | None = None,
) -> TestResult:
    """Judge one attempt.

    Args:
        test: the test.
        ranks: one record for each rank, in order of rank.
        attempt: number of the attempt, from 1.
        started_at_s: start of the attempt, on the run's clock.
        duration_s: wall time of the attempt.
        world_id: the world that ran it.
        cancelled: reason for the cancellation of the world; empty if there was none.
        cause: reason why its ranks could not make progress, if the watch of a plugin found one.
    """
    rule = rule_for(
        {state_of(record) for record in ranks}, cancelled=bool(cancelled), may_differ=test.ranks_may_differ
    )
    outcome, phase, message, culprit = _decide(
        test, ranks, rule, duration_s=duration_s, cancelled=cancelled, cause=cause
    )
    details = _ADVICE if rule.ruling is Ruling.DISAGREED else ""
    # The stacks are in the records; the advice of the plugin is what helps here.
    if rule.ruling is Ruling.HANG and cause is not None:
        details = cause.advice
    # All ranks failed alike, so the details of any of them explain the failure.
    if culprit is None and are_alike(ranks):
        details = ranks[0].details
    return TestResult(
        nodeid=test.nodeid,
        outcome=outcome,
        cause=_cause(outcome, culprit, cancelled=cancelled),
        attempt=attempt,
        started_at_s=started_at_s,
        duration_s=duration_s,
        ruling=rule.ruling,
        phase=phase,
        message=message,
        details=(culprit.details if culprit else "") or details or _details_of_waiter(ranks, culprit),
        culprit=culprit.rank if culprit else None,
        victims=_victims(ranks, culprit) if outcome.is_bad else (),
        notes=(*_notes(ranks, outcome), *_notes_of(cause, rule.ruling)),
        ranks=tuple(ranks),
        world_id=world_id,
        sections={} if cause is None else {cause.name: cause.section},
    )


def _details_of_waiter(ranks: Sequence[RankRecord], culprit: RankRecord | None) -> str:
    """Return where the other ranks waited, if the culprit itself has not failed."""
    waited = (r.details for r in ranks if r.has_failed and r is not culprit)
    return next(filter(None, waited), "") if culprit is not None and not is_red(culprit) else ""


_Decision = tuple[Outcome, str, str, RankRecord | None]


def _decide(
    test: TestCase,
    ranks: Sequence[RankRecord],
    rule: Rule,
    *,
    duration_s: float,
    cancelled: str,
    cause: HangCause | None,
) -> _Decision:
    outcome = rule.outcome or Outcome.ERROR
    match rule.ruling:
        case Ruling.CULPRIT if are_alike(ranks):
            first = ranks[0]
            return _outcome_of(first), first.phase, _shared_accusation(ranks), None
        case Ruling.CULPRIT:
            return _accuse(ranks)
        case Ruling.HANG:
            return _explain_hang(test, ranks, [r for r in ranks if r.hung], cause)
        case Ruling.CANCELLED | Ruling.UNFINISHED:
            why = cancelled or "its world was ended"
            return outcome, "call", f"did not finish after {duration_s:.1f} s: {why}", None
        case Ruling.STRICT:
            return outcome, "call", _passed_strictly(ranks), None
        case Ruling.NOT_RUN:
            return outcome, "call", NOT_RUN, None
        case Ruling.DISAGREED:
            return outcome, "call", describe_disagreement(ranks), None
        case Ruling.EXPECTED | Ruling.AGREED:
            # The message of a rank with the outcome explains it; the others may have been ended while they
            # waited.
            speaker = next((r for r in ranks if r.outcome is outcome), ranks[0])
            phase = speaker.phase if outcome is Outcome.SKIPPED else "call"
            return outcome, phase, "" if outcome is Outcome.PASSED else speaker.message, None


NOT_RUN = (
    f"{NO_TEST_RAN}: no rank has reported the call (--setup-only or --setup-plan, or a plugin or conftest that runs "
    "the test and does not report it)"
)


def spoiled(nodeid: str, message: str, *, at_s: float = 0.0) -> TestResult:
    """Return the result of a test that a machine kept from running."""
    return TestResult(
        nodeid=nodeid,
        outcome=Outcome.ERROR,
        cause=Cause.INFRASTRUCTURE,
        started_at_s=at_s,
        message=message,
    )


def results_not_run(
    tests: Iterable[TestCase], reason: str, *, at_s: float, told: set[str] | None = None
) -> Iterator[TestResult]:
    """Yield the results of tests that are not run: one infrastructure error for each suite, the others skipped.

    A broken machine is reported once for each suite, not once for each test. The exit code reports the rest.

    Args:
        tests: the tests, in order.
        reason: their message.
        at_s: time of the decision on the run's clock.
        told: suites that have their error already; suites of these tests are added.
    """
    told = set() if told is None else told
    for test in tests:
        first = test.suite not in told
        told.add(test.suite)
        yield TestResult(
            nodeid=test.nodeid,
            outcome=Outcome.ERROR if first else Outcome.SKIPPED,
            cause=Cause.INFRASTRUCTURE if first else None,
            started_at_s=at_s,
            phase="setup",
            message=reason,
        )


def not_run(nodeid: str, reason: str, *, at_s: float) -> TestResult:
    """Return the result of a test that was not run because the user ended the run."""
    return TestResult(
        nodeid=nodeid, outcome=Outcome.NOT_RUN, started_at_s=at_s, phase="setup", message=f"not run: {reason}"
    )


def _passed_strictly(ranks: Sequence[RankRecord]) -> str:
    strict = [r for r in ranks if state_of(r) is RankState.STRICT]
    who = (
        f" on all {len(ranks)} ranks" if len(strict) == len(ranks) else f" on {_names_of(strict, len(ranks))}"
    )
    message = f"passed{who if len(ranks) > 1 else ''}, although it is marked as a strict xfail"
    reason = strict[0].message.removeprefix(STRICT_XPASS).strip()
    return f"{message}: {reason}" if reason else message


def _names(ranks: Sequence[RankRecord]) -> str:
    return process_name(ranks[0].rank) if len(ranks) == 1 else rank_names([record.rank for record in ranks])


def _names_of(ranks: Sequence[RankRecord], size: int) -> str:
    return rank_of(ranks[0].rank, size) if len(ranks) == 1 else f"{_names(ranks)} of {size}"


def is_red(record: RankRecord) -> bool:
    """Whether this rank alone fails its test."""
    return record.has_died or record.has_failed


def is_consequence(message: str) -> bool:
    """Whether a failure may be the consequence of another rank's: a lost connection, or an expired wait for a peer."""
    return SYMPTOM.search(message) is not None or _GAVE_UP.search(message) is not None


def is_symptom(record: RankRecord) -> bool:
    """Whether the record's failure may be a consequence; a rank that died before it failed is not such a victim."""
    return (record.has_failed or not record.has_died) and is_consequence(record.message)


# The earliest failure that is not a lost connection: when a rank dies, its peers fail too, often before the
# supervisor notices.
# docs/decisions/0018-culprit-is-the-earliest.md
def by_guilt(record: RankRecord) -> tuple[bool, float, int]:
    """Sort key of failed ranks: the culprit comes first."""
    after_s = record.failed_after_s if record.failed_after_s is not None else float("inf")
    # The rank decides between equal times, so that equal records give equal verdicts.
    return is_symptom(record), after_s, record.rank


def _accuse(ranks: Sequence[RankRecord]) -> _Decision:
    """Name the rank that caused the first failure, if it is known; otherwise the rank that failed first."""
    first, size = min((r for r in ranks if is_red(r)), key=by_guilt), len(ranks)
    outcome, accusation = _outcome_of(first), _accusation(first, size)
    if first.differing_calls and not first.has_failed:
        # gloo aborts the rank that receives too much, which need not be the one that differs.
        odd = next((r for r in ranks if r.rank in first.because_of), None)
        return outcome, first.phase, accusation, odd
    if not is_symptom(first):
        return outcome, first.phase, accusation, first
    # An exception that a rank was still handling explains why it did not join.
    raised = next((r for r in ranks if r.in_flight), None)
    awaited = raised or _awaited_by(first, ranks)
    if awaited is None:
        return outcome, first.phase, accusation, first
    what = _describe_in_flight(raised, size) if raised else _describe_absent(awaited, first, size)
    return outcome, first.phase, f"{what}; {process_name(first.rank)} then failed: {first.message}", awaited


def _awaited_by(first: RankRecord, ranks: Sequence[RankRecord]) -> RankRecord | None:
    """Return the rank at the end of the chain of ranks that waited for each other in vain."""
    by_rank = {record.rank: record for record in ranks}
    chain = [first]
    while following := [by_rank[rank] for rank in chain[-1].because_of if rank in by_rank]:
        # A rank without any failure ends the chain.
        following.sort(key=lambda record: (is_red(record), record.rank))
        if following[0] in chain:
            # The ranks waited for each other.
            return None
        chain.append(following[0])
    return chain[-1] if len(chain) > 1 else None


def _describe_absent(awaited: RankRecord, waiter: RankRecord, size: int) -> str:
    return f"{rank_of(awaited.rank, size)} did not join a call of rank {waiter.rank}: {whereabouts(awaited)}"


def _outcome_of(culprit: RankRecord) -> Outcome:
    """Return pytest's outcome: a failure in the test's own call; everything else is an error."""
    return culprit.outcome if culprit.outcome is not None and culprit.has_failed else Outcome.ERROR


def _accusation(culprit: RankRecord, size: int) -> str:
    who = rank_of(culprit.rank, size)
    if culprit.differing_calls and not culprit.has_failed:
        # gloo usually aborts. It crashes with SIGSEGV in some calls that bring more than there is room for,
        # such as a broadcast of 7 elements into 6.
        how = "crashed" if culprit.signal == signal.SIGSEGV else "aborted"
        return f"{culprit.differing_calls} (gloo then {how} rank {culprit.rank})"
    sizes, call = SIZES.search(culprit.message), last_call(culprit)
    if sizes and call and not culprit.has_failed:
        return (
            f"{who} was sent {sizes[1]} bytes where it expected {sizes[2]}, in {call}: the ranks' tensors differ in size "
            f"(gloo then aborted its process)"
        )
    if not culprit.has_failed:
        return f"{who} {culprit.message}"
    if culprit.rank == LONE_PROCESS:
        return culprit.message  # as pytest has it: the only process needs no name
    where = "" if culprit.phase == "call" else f" in {culprit.phase}"
    return f"{who} failed{where}: {culprit.message}"


def are_alike(ranks: Sequence[RankRecord]) -> bool:
    """Whether all ranks, more than one, failed in the same way, so that none is the culprit of the others."""
    first, *others = ranks
    return bool(others) and all(
        _went_wrong_by_itself(rank)
        and rank.has_died == first.has_died
        and rank.phase == first.phase
        and (rank.message == first.message or _kind(rank) == _kind(first) is not None)
        for rank in ranks
    )


def _went_wrong_by_itself(record: RankRecord) -> bool:
    """Whether the test alone is to blame; a rank that had failed and was slow to leave was ended only for that."""
    # Exactly one of both: a rank that failed and died afterwards went wrong twice. A death by a lost
    # connection has its cause in another rank.
    return record.has_failed != record.has_died and not (record.has_died and is_symptom(record))


def _kind(record: RankRecord) -> tuple[str, str] | None:
    """Return the exception and the line that raised it; the values may differ between ranks."""
    places = _PLACE.findall(record.details)
    return (record.message.partition(":")[0], "".join(places[-1])) if places else None


def _shared_accusation(ranks: Sequence[RankRecord]) -> str:
    first = ranks[0]
    if not first.has_failed:
        return f"each of the {len(ranks)} ranks {first.message}"
    where = "" if first.phase == "call" else f" in {first.phase}"
    same = all(rank.message == first.message for rank in ranks)
    return f"all {len(ranks)} ranks failed{where}{':' if same else ', rank 0:'} {first.message}"


def _notes_of(cause: HangCause | None, ruling: Ruling) -> tuple[str, ...]:
    """Return a note on the cause of a hang that does not decide the outcome: the test continued, or expects it."""
    return () if cause is None or ruling is Ruling.HANG else (cause.message,)


def _explain_hang(
    test: TestCase, ranks: Sequence[RankRecord], hung: Sequence[RankRecord], cause: HangCause | None
) -> _Decision:
    outcome, phase, message, culprit = _explain_waits(test, ranks, hung, cause)
    raised = [rank for rank in hung if rank.in_flight]
    if not raised:
        return outcome, phase, message, culprit
    # The exception comes first: without it, the rank would have continued to meet the others.
    first = raised[0]
    alone = len(raised) < len(ranks)
    return (
        outcome,
        first.phase,
        f"{_describe_in_flight(first, len(ranks))}: {message}",
        first if alone else culprit,
    )


def _describe_in_flight(record: RankRecord, size: int) -> str:
    return f"{rank_of(record.rank, size)} raised {record.in_flight}, and had not handled it yet"


def _explain_waits(
    test: TestCase, ranks: Sequence[RankRecord], hung: Sequence[RankRecord], cause: HangCause | None
) -> _Decision:
    # The watch of a plugin has seen the waits themselves; `explain` infers them from calls and stacks.
    finding = Finding(cause.message, cause.culprit) if cause else explain(ranks)
    if finding is not None:
        timed_out = f" (timed out after {test.timeout_s:g} s)"
        # A test that the watch has ended did not use up its time limit.
        message = f"{finding.message}{'' if cause and cause.ends else timed_out}"
        return (
            Outcome.FAILED,
            hung[0].phase,
            message,
            next((rank for rank in ranks if rank.rank == finding.culprit), None),
        )
    finished = [r for r in ranks if not r.hung]
    message = f"timed out after {test.timeout_s:g} s: {_names_of(hung, len(ranks))} still in {hung[0].phase}"
    if finished:
        message += f"; {_names(finished)} had finished"
    return Outcome.FAILED, hung[0].phase, message, hung[0] if len(hung) == 1 else None


def _victims(ranks: Sequence[RankRecord], culprit: RankRecord | None) -> tuple[int, ...]:
    if culprit is None:
        return ()
    hurt = (r for r in ranks if r is not culprit and (r.end is RankEnd.KILLED or is_red(r)))
    return tuple(r.rank for r in hurt)


def _cause(outcome: Outcome, culprit: RankRecord | None, *, cancelled: str) -> Cause | None:
    if not outcome.is_bad:
        return None
    # A cancelled test is not to blame, but a failure before the cancellation is real.
    return Cause.INFRASTRUCTURE if cancelled and culprit is None else Cause.TEST


def _notes(ranks: Sequence[RankRecord], outcome: Outcome) -> tuple[str, ...]:
    notes = []
    skipped = [r for r in ranks if r.outcome is Outcome.SKIPPED]
    if skipped and outcome is not Outcome.SKIPPED:
        notes.append(f"{_names(skipped)} skipped it: {skipped[0].message}")
    reasons = {r.message for r in skipped}
    if outcome is Outcome.SKIPPED and len(reasons) > 1:
        notes.append("the ranks gave different reasons: " + "; ".join(sorted(reasons)))
    unrendered = [r for r in ranks if r.unrendered]
    if unrendered:
        whose = "its report" if len(unrendered) == 1 else "their reports"
        notes.append(f"{_names(unrendered)} could not render {whose}: {_UNRENDERED}")
    notes += _leak_notes(ranks)
    return tuple(notes)


def _leak_notes(ranks: Sequence[RankRecord]) -> list[str]:
    by_leak: dict[str, list[RankRecord]] = {}
    for record in ranks:
        for leak in record.leaks:
            by_leak.setdefault(leak, []).append(record)
    return [f"{_names(who)} leaked {leak}" for leak, who in by_leak.items()]
