"""Decides which commit to test next, and how often, when the test fails only now and then. Pure.

A failure proves that a commit is bad. A pass proves little: a bad commit passes, too, unless the test fails each time. So each
commit has a probability that it is the first bad one. The next run is where it is expected to teach most, and a commit is tested
until another one would teach more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
        if failed:
            # The first bad commit is this one or an earlier one.
            self._chances = [chance if first <= commit else 0.0 for first, chance in enumerate(chances)]
        else:
            kept = (1 - self._rate) ** passed
            self._chances = [
                chance * kept if first <= commit else chance for first, chance in enumerate(chances)
            ]
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


def fewest_runs(commits: int, rate: float) -> float:
    """The runs that no rule can beat on average: the information that is needed, by the most that one run can give."""
    if rate >= 1:
        return math.log2(commits)
    hidden = 1 - rate
    capacity = math.log2(1 + rate * hidden ** (hidden / rate))
    return math.log2(commits) / capacity
