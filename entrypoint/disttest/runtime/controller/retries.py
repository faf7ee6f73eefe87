"""Decide about a failed test: another attempt in a new world, or the failure counts. Starts no process.

Failures of a test and attempts spoiled by a machine have separate budgets, because a broken machine says nothing about
the test. Attempts of the second kind are delayed, since the machine may need to recover; tenacity computes the delays.
Its retry loop is not used, because the controller has a loop already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from disttest.limits import RETRY_FIRST_PAUSE_S, RETRY_LONGEST_PAUSE_S
from disttest.model import ALONE, Batch, Cause, Isolation, Outcome, TestCase, TestResult, WorldKind
from disttest.options.run import RunOptions
from disttest.results.rulings import RankState, state_of
from disttest.runtime.messages.protocol import TestJudged

# States of a rank that takes no part in a test.
_NO_PART = frozenset({RankState.SKIPPED, RankState.NOT_RUN})
# States of a rank that may have been going to take part.
_CUT = frozenset({RankState.ENDED, RankState.ENDED_XFAIL})


class _WaitingRetry(NamedTuple):
    due_s: float
    batch: Batch


class Retries:
    """Counts attempts, and holds tests until their next attempt is due."""

    def __init__(self, options: RunOptions, clock: Callable[[], float]) -> None:
        self._budget = {
            Cause.TEST: options.retries,
            Cause.INFRASTRUCTURE: options.infra_retries,
            Cause.PLUGIN: 0,
        }
        self._own: Mapping[str, int] = {}
        self._clock = clock
        self._spent: Counter[tuple[str, Cause]] = Counter()
        self._attempts: Counter[str] = Counter()
        self._failed: dict[str, TestJudged] = {}
        self._waiting: list[_WaitingRetry] = []
        self._submitted = 0
        self._stopped = False

    def allow(self, own: Mapping[str, int]) -> None:
        """Set another number of retries for some tests, by node id."""
        self._own = own

    def attempt_of(self, nodeid: str) -> int:
        """Number of a test's running or next attempt, from 1."""
        return self._attempts[nodeid] + 1

    @property
    def open(self) -> bool:
        """Whether any test waits for its next attempt."""
        return bool(self._waiting)

    def counted(self, judged: TestJudged) -> TestJudged:
        """Decide which result counts.

        An attempt that skips, that no longer runs the failed rank or that is cut short does not undo the earlier
        failure.
        """
        result = judged.result
        earlier = self._failed.get(result.nodeid)
        if earlier is None:
            return judged
        what = _evasion(earlier.result, result)
        if self._stopped and result.cause is Cause.INFRASTRUCTURE:
            what = "was cut short"
        if not what:
            return judged
        message = f"{earlier.result.message} (attempt {result.attempt} {what})"
        return msgspec.structs.replace(
            earlier,
            result=msgspec.structs.replace(earlier.result, attempt=result.attempt, message=message),
        )

    def wants_another(self, result: TestResult) -> bool:
        """Whether an attempt failed and the budget allows another one."""
        cause = result.cause or Cause.TEST
        own = self._own if cause is Cause.TEST else {}
        left = own.get(result.nodeid, self._budget[cause]) - self._spent[result.nodeid, cause]
        return result.outcome.is_bad and left > 0 and not self._stopped

    def schedule_retry(self, test: TestCase, judged: TestJudged) -> float | None:
        """Schedule another attempt; return the delay in seconds, or None if this attempt counts."""
        result = judged.result
        cause = result.cause or Cause.TEST
        key = (test.nodeid, cause)
        # This attempt settles the earlier failure, whichever of the two counts.
        self._failed.pop(test.nodeid, None)
        if not self.wants_another(result):
            return None
        self._spent[key] += 1
        self._attempts[test.nodeid] += 1
        self._failed[test.nodeid] = judged
        pause_s = 0.0 if cause is Cause.TEST else _pause_s(self._spent[key])
        self._waiting.append(_WaitingRetry(self._clock() + pause_s, self._batch_of(test, result)))
        return pause_s

    def grant(self, test: TestCase, judged: TestJudged) -> None:
        """Schedule another attempt outside the budgets: the device that spoiled this one is out of use."""
        self._attempts[test.nodeid] += 1
        self._failed[test.nodeid] = judged
        self._waiting.append(_WaitingRetry(self._clock(), self._batch_of(test, judged.result)))

    def due(self) -> Iterator[Batch]:
        """Take the batches that are due now."""
        # One look at the clock: a batch that fell due between two looks would be in neither list.
        now_s = self._clock()
        ready = [waiting for waiting in self._waiting if waiting.due_s <= now_s]
        self._waiting = [waiting for waiting in self._waiting if waiting.due_s > now_s]
        yield from (waiting.batch for waiting in ready)

    def due_in_s(self) -> float:
        """Seconds until the next batch is due; infinite if none waits."""
        return max(
            0.0, min((waiting.due_s for waiting in self._waiting), default=float("inf")) - self._clock()
        )

    def withdraw(self, nodeid: str) -> TestJudged | None:
        """Return the failure that counts because no further attempt will follow; None if there is none."""
        return self._failed.pop(nodeid, None)

    def stop(self) -> None:
        """Schedule no further attempts."""
        self._stopped = True
        self._waiting.clear()

    def unresolved(self) -> list[tuple[str, TestJudged]]:
        """List failures whose next attempt has no result."""
        return list(self._failed.items())

    def _batch_of(self, test: TestCase, result: TestResult) -> Batch:
        self._submitted += 1
        return Batch(
            batch_id=f"retry-{self._submitted}",
            nodeids=(test.nodeid,),
            shape=test.world or ALONE,
            # The attempt starts from nothing that the failure has left, and waits for no other test.
            isolation=Isolation.FRESH,
            expected_s=result.duration_s,
            exclusive=test.exclusive,
            shares=test.kind is not WorldKind.RANKS,
        )


# A skip or an xfail in a retry does not undo the failure before it.
# docs/decisions/0020-retries-do-not-hide.md
def _evasion(failed: TestResult, again: TestResult) -> str:
    """Explain why a later attempt does not undo an earlier failure; empty if it does."""
    if again.outcome is Outcome.SKIPPED:
        return f"skipped: {again.message}"
    # A spoiled attempt proves nothing, so any later result counts.
    if again.outcome.is_bad or failed.cause is Cause.INFRASTRUCTURE:
        return ""
    ran = {record.rank: record for record in failed.ranks if state_of(record) not in _NO_PART}
    for record in again.ranks:
        if (before := ran.get(record.rank)) is None:
            continue
        if state_of(record) in _NO_PART and state_of(before) not in _CUT:
            return f"passed without rank {record.rank}, which {state_of(record)}"
        if record.outcome is Outcome.XFAILED and not (before.xfail or before.outcome is Outcome.XPASSED):
            return f"failed again, now as expected: {record.message}"
        # After a failure outside of subtests, the test may not have reached those that it skips now.
        if before.in_subtest and record.subtests_skipped > before.subtests_skipped:
            return f"passed on rank {record.rank} without some subtests"
    return ""


def _pause_s(number: int) -> float:
    # Imported late: only runs that meet a broken machine need the library.
    from tenacity import RetryCallState, wait_exponential, wait_random

    state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
    state.attempt_number = number
    # The random part keeps several runs on one broken machine from retrying in step.
    wait = wait_exponential(multiplier=RETRY_FIRST_PAUSE_S, max=RETRY_LONGEST_PAUSE_S) + wait_random(
        0, RETRY_FIRST_PAUSE_S
    )
    return wait(state)
