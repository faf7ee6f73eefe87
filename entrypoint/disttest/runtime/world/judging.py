"""Turn a finished attempt into the result of its test and the pytest reports that represent it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from disttest.clock import monotonic
from disttest.errors import PluginError
from disttest.hookspecs import hookimpl
from disttest.model import (
    LONE_PROCESS,
    MAIN_RANK,
    Cause,
    HangCause,
    Outcome,
    RankEnd,
    RankRecord,
    Recorded,
    Ruling,
    TestCase,
    TestResult,
    VerdictRule,
    WorldKind,
)
from disttest.plugin_manager import plugin_manager
from disttest.results.exit_codes import NO_RANKS
from disttest.results.further_failures import FurtherFailure, with_further_failures
from disttest.results.rulings import RankState, disagreement, state_of
from disttest.results.verdict import judge
from disttest.runtime.messages.protocol import RanksJoined
from disttest.runtime.world.attempt import Attempt, RankProgress
from disttest.runtime.world.judged_attempt import JudgedAttempt

LENIENT_NOTE = "torch's own rules would have passed this test"
NEW_RANKS = "got new ranks, because the main process had changed since the last ones started"


_NEVER_EXPECTED = frozenset({RankState.DIED, RankState.HUNG})


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

    A failed rank fails the test even if the main process passes, unless the main process was expected to fail; a crash or a
    hang of a rank is never expected. If the ranks passed, or there are none, the main process decides.
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

    was_left = any(rank.not_awaited for rank in ranks)
    # `setUp` of a class may skip after that of its base has started the ranks. They show nothing then.
    if was_left and main.outcome is Outcome.SKIPPED:
        ranks, torch_outcome = (), Outcome.SKIPPED
    # A test that fails before it joins its ranks explains why they were left running.
    explains = was_left and (_is_bad(main) or main.end is not RankEnd.REPORTED)
    by_ranks = ruled(ranks) if ranks and not explains else None
    expected = main.outcome in (Outcome.XFAILED, Outcome.XPASSED) and _NEVER_EXPECTED.isdisjoint(
        map(state_of, ranks)
    )
    main_decides = expected or rule is VerdictRule.TORCH
    if by_ranks is not None and by_ranks.outcome.is_bad and not main_decides:
        return _with_torch(by_ranks, torch_outcome)
    tested_nothing = (
        test.kind is WorldKind.MAIN
        and not ranks
        and main.outcome is Outcome.PASSED
        and rule is VerdictRule.STRICT
    )
    if tested_nothing:
        main = msgspec.structs.replace(main, outcome=Outcome.FAILED, message=NO_RANKS)
    # Messages then speak of the process: an isolated file has no ranks.
    named = msgspec.structs.replace(main, rank=LONE_PROCESS) if test.kind is WorldKind.PROCESS else main
    decided = _by_main(ruled([named]), main, ranks)
    if by_ranks is not None and not decided.outcome.is_bad:
        decided = msgspec.structs.replace(decided, notes=(*decided.notes, *by_ranks.notes))
    if tested_nothing:
        # torch's harness passes a class that starts no rank; an empty setUp() is enough for that.
        torch_outcome = Outcome.PASSED
    elif decided.outcome.is_bad and torch_outcome is not None:
        # The main process failed for another reason than its ranks, and does so in torch's harness too.
        torch_outcome = Outcome.FAILED
    return _with_torch(decided, torch_outcome)


def _by_main(result: TestResult, main: RankRecord, ranks: Sequence[RankRecord]) -> TestResult:
    """Return the main process's own outcome."""
    bad = result.outcome.is_bad
    shown = (main, *ranks) if bad or not ranks else tuple(ranks)
    return msgspec.structs.replace(
        result,
        details=main.details if bad else "",
        # The culprit is the number of a rank, and the main process has none.
        culprit=None,
        victims=(),
        ranks=shown,
        cause=Cause.TEST if bad and main.end is not RankEnd.KILLED else result.cause,
    )


def _with_torch(result: TestResult, torch_outcome: Outcome | None) -> TestResult:
    # Nothing is known by torch's rules: its harness would have run the test to its end.
    if result.ruling is Ruling.CANCELLED:
        torch_outcome = None
    if torch_outcome is None or torch_outcome.is_bad == result.outcome.is_bad:
        return msgspec.structs.replace(result, torch_outcome=torch_outcome)
    notes = (*result.notes, LENIENT_NOTE) if result.outcome.is_bad else result.notes
    return msgspec.structs.replace(result, torch_outcome=torch_outcome, notes=notes)


def judge_with_plugins(attempt: JudgedAttempt) -> TestResult:
    """Judge the test from the outcomes of its ranks, then let plugins change the result.

    Args:
        attempt: finished or cancelled.
    """
    plugins = plugin_manager()
    plugins.add_core(_CORE, "judgement")
    try:
        result = plugins.call("disttest_judge_attempt", attempt=attempt)
        if not isinstance(result, TestResult):
            raise PluginError(
                f"a plugin returned {type(result).__name__} from disttest_judge_attempt, and a TestResult is needed; "
                f"these have the hook: {', '.join(plugins.implementing('disttest_judge_attempt'))}"
            )
    # The core judges without the plugins, so that the result has the outcomes of the ranks at least.
    except PluginError as error:
        return plugin_failed(_CORE.disttest_judge_attempt(attempt), str(error), error.trace)
    return with_plugin_error(result, first_plugin_error(attempt))


def with_plugin_error(result: TestResult, error: str) -> TestResult:
    """Apply an exception of a plugin, with its traceback on further lines; empty if there is none."""
    message, _, trace = error.partition("\n")
    return plugin_failed(result, message, trace) if error else result


def first_plugin_error(attempt: JudgedAttempt) -> str:
    """Return the first exception of a plugin during the test, and its traceback on further lines; empty if none."""
    # Later errors of plugins are often its consequences.
    return next((f"{where}{failure}" for where, failure in _plugin_errors(attempt)), "")


def _plugin_errors(attempt: JudgedAttempt) -> Iterator[tuple[str, str]]:
    """List errors of plugins during the test: the place, then the message with its traceback on further lines."""
    if attempt.attempt.plugin_error:
        yield "", attempt.attempt.plugin_error
    for progress in attempt.ranks:
        if progress.done is not None and progress.done.plugin_error:
            yield f"rank {progress.rank}: ", progress.done.plugin_error
        yield from (("", joined.plugin_error) for joined in progress.joined if joined.plugin_error)


class _Core:
    """The core's implementation of the judgement, which plugins wrap."""

    @hookimpl
    def disttest_judge_attempt(self, attempt: JudgedAttempt) -> TestResult:
        """Judge by the outcomes of the ranks."""
        return judge_attempt(attempt.attempt, world_id=attempt.world_id, rule=attempt.settings.verdict)


_CORE = _Core()


def plugin_failed(result: TestResult, message: str, trace: str) -> TestResult:
    """Turn a plugin's exception into an error of the test, so that it never passes.

    Args:
        result: as the core judged it; a failure stays, and gets a note.
        message: names the plugin and its hook.
        trace: traceback of the exception.
    """
    if result.outcome.is_bad:
        return msgspec.structs.replace(result, notes=(*result.notes, message))
    return msgspec.structs.replace(
        result, outcome=Outcome.ERROR, cause=Cause.PLUGIN, message=message, details=trace
    )


def judge_attempt(
    attempt: Attempt,
    *,
    world_id: str,
    rule: VerdictRule,
) -> TestResult:
    """Judge the test from everything that its ranks reported and did. The test ends now.

    Args:
        attempt: finished or cancelled.
        world_id: the world that ran it.
        rule: verdict rule for ranks that a main process started.
    """
    circumstances: dict[str, Any] = {
        "attempt": attempt.number,
        "started_at_s": attempt.started_at_s,
        "duration_s": monotonic() - attempt.started_s,
        "world_id": world_id,
        "cancelled": attempt.cancelled,
    }
    records = [progress.record(attempt.started_s) for progress in attempt.ranks]
    # After a failure the groups are usually broken, and the world ends in any case.
    if attempt.failed_s is None:
        records = [*map(_with_broken_groups, records, attempt.ranks)]
    if attempt.test.kind is WorldKind.RANKS:
        result = judge(attempt.test, records, cause=attempt.cause, **circumstances)
        return with_further_failures(result, _further_failures(attempt.ranks))
    # A main process is not a rank: its warnings are stored apart, and its record has no rank number.
    main = msgspec.structs.replace(records[0], rank=MAIN_RANK, recorded=Recorded())
    superseded = [each for each in attempt.ranks[0].joined if each.superseded]
    last = [each for each in attempt.ranks[0].joined if not each.superseded]
    joined = _deciding_set(last, main, may_differ=attempt.test.ranks_may_differ)
    result = judge_adapted(
        attempt.test,
        main,
        joined.records if joined else (),
        rule=rule,
        torch_outcome=_torch_outcome(joined, attempt.ranks[0]) if joined else None,
        cause=joined.cause if joined else None,
        **circumstances,
    )
    result = msgspec.structs.replace(result, by_main=records[0].recorded)
    outdated = [f"{NEW_RANKS}: {each.outdated}" for each in attempt.ranks[0].joined if each.outdated]
    told = tuple(map(_describe_superseded, superseded))
    if told or outdated:
        notes = (*result.notes, *told, *outdated)
        result = msgspec.structs.replace(result, superseded=told, notes=notes)
    return with_further_failures(result, _of_main(attempt.ranks[0], by_ranks=result.culprit is not None))


def _torch_outcome(joined: RanksJoined, main: RankProgress) -> Outcome | None:
    """Return the outcome by torch's rules. Ranks fail the call of the main process only; its other phases fail there too."""
    failed = any(report.outcome.is_bad and report.phase != "call" for report in main.reports)
    return Outcome.FAILED if failed and joined.torch_outcome is not None else joined.torch_outcome


def _further_failures(ranks: Sequence[RankProgress]) -> Iterator[FurtherFailure]:
    for progress in ranks:
        for report in progress.further_failures:
            yield FurtherFailure(progress.rank, report.phase, report.message, report.details)


def _of_main(main: RankProgress, *, by_ranks: bool) -> Iterator[FurtherFailure]:
    """Yield further failures of a main process; if its ranks decided, its call only repeats theirs."""
    own = main.verdict_report
    if by_ranks and own is not None and own.outcome.is_bad and own.phase != "call":
        yield FurtherFailure(None, own.phase, own.message, own.details)
    for failure in _further_failures([main]):
        yield failure._replace(rank=None)


def _with_broken_groups(record: RankRecord, progress: RankProgress) -> RankRecord:
    """Add the reasons why the groups of the world are unusable; a failed test needs no such note."""
    broken = progress.done.broken if progress.done else ()
    return msgspec.structs.replace(record, leaks=(*record.leaks, *broken)) if broken else record


def _describe_superseded(joined: RanksJoined) -> str:
    """Describe a failure in reused ranks, after which the test ran again in new ranks."""
    bad = next(filter(_is_bad, joined.records), None)
    what = f"rank {bad.rank}: {bad.message or 'did not finish'}" if bad else "ranks disagreed"
    return f"failed in reused ranks, and was run again in new ones ({what})"


def _deciding_set(joined: Sequence[RanksJoined], main: RankRecord, *, may_differ: bool) -> RanksJoined | None:
    """Choose the set of ranks that decides, if a test started several: the first that failed, otherwise the last.

    Ranks that are threads count only if the main process failed too, or has seen nothing of their ends: it may have caught
    their exceptions.
    """

    def ended_badly(each: RanksJoined) -> bool:
        return any(map(_is_bad, each.records)) or bool(disagreement(each.records, may_differ=may_differ))

    counting = [each for each in joined if _is_bad(main) or not each.threads or each.ignored]
    bad = (each for each in counting if (not each.threads or each.ignored) and ended_badly(each))
    return next(bad, counting[-1] if counting else None)


def _is_bad(record: RankRecord) -> bool:
    return record.outcome is None or record.outcome.is_bad


def representing_reports(attempt: Attempt, result: TestResult) -> tuple[str, ...]:
    """Choose the pytest reports that represent the test: the culprit's, otherwise those of the first deciding rank."""
    ranks = attempt.ranks
    if attempt.test.kind is not WorldKind.RANKS:
        # A main process runs pytest's protocol, so its own reports represent the test.
        return tuple(report.report for report in ranks[0].reports if report.report)
    # Ranks may differ, so a rank with another outcome than the test must not represent it.
    speaker = next(
        (p for p, r in zip(ranks, result.ranks, strict=True) if r.outcome is result.outcome), ranks[0]
    )
    if result.culprit is not None:
        speaker = ranks[result.culprit]
    return tuple(report.report for report in speaker.reports if report.report)
