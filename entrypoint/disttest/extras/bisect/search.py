"""Searches the first bad commit: measures the rate, then follows the rule. Pure: a function runs the test."""

from __future__ import annotations

from collections.abc import Callable

from disttest.errors import UsageError
from disttest.extras.bisect.rule import MOST_AT_ONCE, Bisection
from disttest.extras.history.rates import describe_rate, wilson
from disttest.model import Frozen

FAILURES = 5
"""Failures that measure a rate well enough: with fewer, the lower end of its interval costs many runs later."""
FIRST_RUNS = 10
"""Runs of the first batch that measures it; a test that fails in all of them fails each time. Each further batch is four times as
large."""
Z_CAREFUL = 1.0
"""Quantile for the lower end of the measured rate. A rate that is too large would take a bad commit for a good one."""


class Tried(Frozen):
    """The result of a batch of runs at one commit."""

    passed: int = 0
    failed: int = 0
    why_not: str = ""
    """Reason why the test could not run there; empty if it did."""

    @property
    def runs(self) -> int:
        """Number of runs."""
        return self.passed + self.failed


class Answer(Frozen):
    """The result of the search."""

    commits: tuple[int, ...]
    """The first bad commit; or those that it may be, in order."""
    probability: float
    """Of the most probable one."""
    runs: int
    is_decided: bool


Try = Callable[[int, int, bool], Tried]
"""Runs the test at a commit (by its place in the list), so many times; or until it fails, if the last argument says so."""
Say = Callable[[str], None]


def measure_rate(commit: int, attempt: Try, say: Say, most: int) -> tuple[float, int]:
    """Measure how often the test fails at the bad commit; returns a careful rate, and the number of runs.

    Raises:
        UsageError: it cannot run there, or did not fail.
    """
    failed, ran, batch = 0, 0, FIRST_RUNS
    while failed < FAILURES and ran < most:
        # Without a stop: a start costs as much as many runs.
        tried = attempt(commit, min(batch, MOST_AT_ONCE, most - ran), False)
        if tried.why_not or not tried.runs:
            raise UsageError(f"the test cannot run at BAD: {tried.why_not or 'no test ran'}")
        failed, ran, batch = failed + tried.failed, ran + tried.runs, 4 * batch
    if not failed:
        raise UsageError(
            f"the test passed in all of {ran} runs at BAD; give a commit at which it fails, or a larger --most"
        )
    say(f"at BAD it {describe_rate(failed, ran)}")
    return wilson(failed, ran, z=Z_CAREFUL)[0] if failed < ran else 1.0, ran


def search(
    commits: int, attempt: Try, say: Say, *, rate: float | None, confidence: float, most: int
) -> Answer:
    """Find the first bad commit.

    Args:
        commits: number of commits, from the good one to the bad one.
        attempt: runs the test.
        say: receives a line for each batch.
        rate: how often the test fails at a bad commit; None to measure it.
        confidence: probability that is enough.
        most: number of runs after which the search ends without an answer.

    Raises:
        UsageError: the test did not fail at the bad commit, or cannot run there.
    """
    runs = 0
    if rate is None:
        rate, runs = measure_rate(commits - 1, attempt, say, most)
    bisection = Bisection(commits, rate, confidence=confidence)
    while (step := bisection.next()) is not None and runs < most:
        commit, times = step
        tried = attempt(commit, min(times, most - runs), True)
        runs += tried.runs
        if tried.why_not or not tried.runs:
            bisection.skip(commit)
            say(f"commit {commit} of {commits - 1}: skipped, {tried.why_not or 'no test ran'}")
            continue
        bisection.add(commit, passed=tried.passed, failed=tried.failed > 0)
        passes = f"{tried.passed} {'pass' if tried.passed == 1 else 'passes'}"
        say(f"commit {commit} of {commits - 1}: {'failed after ' if tried.failed else ''}{passes}")
    best, probability = bisection.best
    is_decided = bisection.is_decided
    likely = (best,) if is_decided else tuple(bisection.likely())
    return Answer(commits=likely, probability=probability, runs=runs, is_decided=is_decided)
