"""Searches the first bad commit: measures the rate, then decides which commit to test next, and how often.

A failure proves that a commit is bad. A pass proves little: a bad commit passes, too, unless the test fails each time. So
each commit has a probability that it is the first bad one. The next run is where it is expected to teach most, and a commit
is tested until another one would teach more. Pure: a function runs the test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from disttest.errors import UsageError
from disttest.extras.history.rates import describe_rate, wilson
from disttest.model import Frozen

MOST_AT_ONCE = 200
"""Runs of one batch."""


class Bisection:
    """The probabilities of the candidates, which the results of runs change.

    Candidate 0 is the commit that should be good: it may be bad already. The last one is known to be bad.

    Args:
        commits: number of commits, both ends included.
        rate: how often the test fails at a bad commit, above 0. A rate that is too small costs runs; one that is too large gives
            wrong answers.
        confidence: the probability that is enough.
    """

    def __init__(self, commits: int, rate: float, *, confidence: float) -> None:
        if commits < 2 or not 0 < rate <= 1:
            raise ValueError(f"cannot bisect {commits} commits with the rate {rate}")
        # A certain failure would let one broken machine decide.
        self._rate = min(rate, 0.999)
        self._confidence = confidence
        self._chances = [1 / commits] * commits
        self._untestable: set[int] = set()

    def add(self, commit: int, *, passed: int = 0, failed: bool = False) -> None:
        """Take the result of a batch: passes, and whether a failure followed them."""
        chances = self._chances
        # Passes before the failure change nothing: they scale all candidates that remain by the same factor.
        if failed:
            # The first bad commit is this one or an earlier one.
            self._chances = [chance if first <= commit else 0.0 for first, chance in enumerate(chances)]
        else:
            kept = (1 - self._rate) ** passed
            self._chances = [
                chance * kept if first <= commit else chance for first, chance in enumerate(chances)
            ]
        # fsum rounds once: the probabilities of thousands of commits differ by many powers of ten.
        total = math.fsum(self._chances)
        self._chances = [chance / total for chance in self._chances]

    def skip(self, commit: int) -> None:
        """A commit cannot be tested: it lacks the test, or cannot import it."""
        self._untestable.add(commit)

    @property
    def best(self) -> tuple[int, float]:
        """The most probable first bad commit, and its probability."""
        first = max(range(len(self._chances)), key=self._chances.__getitem__)
        return first, self._chances[first]

    @property
    def is_decided(self) -> bool:
        """Whether one commit is probable enough."""
        return self.best[1] >= self._confidence

    def likely(self) -> Sequence[int]:
        """The fewest commits that together are probable enough, in order."""
        order = sorted(range(len(self._chances)), key=lambda first: -self._chances[first])
        chosen: list[int] = []
        while math.fsum(self._chances[first] for first in chosen) < self._confidence:
            chosen.append(order[len(chosen)])
        return sorted(chosen)

    def next(self) -> tuple[int, int] | None:
        """The commit to test next, and how often at most; None if no run can teach anything."""
        commit = None if self.is_decided else self._most_telling(self._chances)
        if commit is None:
            return None
        bad = math.fsum(self._chances[: commit + 1])
        # Only passes are simulated: a failure ends the batch. A first version let a batch last until the
        # choice changed, and ignored the confidence. It needed 285 runs where this one needs 118 (rate 0.1,
        # 64 commits).
        for runs in range(1, MOST_AT_ONCE):
            kept = bad * (1 - self._rate) ** runs
            scale = kept + 1 - bad
            after = [
                chance * (kept / bad if first <= commit else 1.0) / scale
                for first, chance in enumerate(self._chances)
            ]
            if max(after) >= self._confidence or self._most_telling(after) != commit:
                return commit, runs
        return commit, MOST_AT_ONCE

    def _most_telling(self, chances: Sequence[float]) -> int | None:
        """The commit whose next run is expected to reduce the entropy most. The last commit is bad, and teaches nothing."""
        # Not 0: rounding leaves differences of about 1e-16 where a run can teach nothing, and the search
        # would go on to --most.
        best, most = None, 1e-9
        bad = 0.0
        for commit, chance in enumerate(chances[:-1]):
            bad += chance
            if commit not in self._untestable:
                fails = bad * self._rate
                # Mutual information of the run and the position: H(result) - H(result given the position).
                told = _entropy(fails) - bad * _entropy(self._rate)
                if told > most:
                    best, most = commit, told
        return best


def _entropy(chance: float) -> float:
    if not 0 < chance < 1:
        return 0.0
    return -chance * math.log2(chance) - (1 - chance) * math.log2(1 - chance)


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
    # A test that failed in all runs is no flaky one. Its lower bound would cost further runs at each commit.
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
        # A commit that cannot be tested says nothing about its neighbours, so its probability stays.
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
