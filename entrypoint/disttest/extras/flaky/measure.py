"""Measures a test: runs it plainly, then under each perturbation, then under weaker ones. Pure: a function runs the test."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from disttest.extras.flaky.causes import (
    Cause,
    Pairs,
    Perturbation,
    Tally,
    Verdict,
    classify,
    is_changed,
)
from disttest.extras.flaky.perturbations import AFTER, PLAIN
from disttest.model import Frozen

CONFIRMATIONS = 3
"""Runs after the other tests: each is a start of pytest."""
_MOST = 640
"""Repetitions in one run at most. Each round has twice as many as the one before."""
# A quarter of all, then a third of the three quarters that are left.
_SHARES = (1 / 4, 1 / 3)
"""Parts of the remaining time for the two plain runs of a round, so that half of it is left for perturbations."""


class Trial(Frozen):
    """A run of the test."""

    words: tuple[str, ...] = PLAIN
    """Options of ``disttest run``."""
    times: int = 1
    seed: int = 0
    before: tuple[str, ...] = ()
    """Tests that run first."""
    share: float = 1.0
    """Part of the remaining time that the run may take."""


class Outcomes(Frozen):
    """The result of a trial."""

    failed: Mapping[int, bool] = {}
    """Number of each repetition that ran, from 1, and whether it failed."""
    spoiled: int = 0
    broken: tuple[str, ...] = ()
    """Other tests that failed."""

    @property
    def is_empty(self) -> bool:
        """Whether no repetition ended."""
        return not self.failed and not self.spoiled

    @property
    def tally(self) -> Tally:
        """The numbers of runs."""
        failed = sum(self.failed.values())
        return Tally(failed=failed, passed=len(self.failed) - failed, spoiled=self.spoiled)


class Enough(Exception):
    """The budget is used up, or the test has failed and that was all that the user wanted."""


Attempt = Callable[[Trial], Outcomes]
"""Runs a trial; raises :class:`Enough` if no time is left for it."""


def seed_of(nodeid: str, repetition: int, seed: int) -> int:
    """Return the ``--seed`` with which the first repetition of a test draws the numbers of a later one."""
    # A rank draws the seed of a test from its id and the seed of the run: runtime/rank/rank.py.
    if repetition == 1:
        return seed
    return zlib.crc32(f"{nodeid}#{repetition}".encode()) ^ zlib.crc32(nodeid.encode()) ^ seed


class Measurement:
    """The numbers of a test, which grow while the test is measured.

    Args:
        nodeid: the test.
        others: the other tests that can share its processes.
        table: the perturbations to try.
        attempt: runs the test.
        say: is called with the name of a row, and its numbers, after each change.
        times: repetitions in each run of the first round.
        seed: seed of the first round.
        until_fail: whether to stop at the first failure.
    """

    def __init__(
        self,
        nodeid: str,
        others: Sequence[str],
        table: Sequence[Perturbation],
        attempt: Attempt,
        say: Callable[[str, Tally], object],
        *,
        times: int,
        seed: int,
        until_fail: bool = False,
    ) -> None:
        self._nodeid, self._others, self._attempt, self._say = nodeid, tuple(others), attempt, say
        self._times, self._seed, self._until_fail = times, seed, until_fail
        self.table = tuple(row for row in table if others or row != AFTER)
        self.plain, self.pairs = Tally(), Pairs()
        self.perturbed: dict[str, Tally] = {}
        self._smallest: Trial | None = None
        self._failing_seed: int | None = None

    @property
    def verdict(self) -> Verdict:
        """The class of the test."""
        return classify(self.plain, self.pairs, self.perturbed, self.table)

    @property
    def smallest(self) -> Trial | None:
        """The smallest perturbation so far that reproduces the failure; None if the test has not failed."""
        if self.verdict.cause is Cause.SEED and self._failing_seed is not None:
            return Trial(seed=self._failing_seed)
        return self._smallest

    @property
    def untried(self) -> tuple[str, ...]:
        """Rows for which the time did not suffice, although the cause is not known."""
        if self.verdict.is_known or (self._until_fail and self.has_failed):
            return ()
        table = (row for row in self.table if self._others or row != AFTER)
        names = (row.name for row in table if row.name not in self.perturbed)
        return tuple(names) if self.plain.ran else ("plain", *names)

    @property
    def has_failed(self) -> bool:
        """Whether any run has failed."""
        return any(each.failed for each in (self.plain, *self.perturbed.values()))

    def measure(self) -> None:
        """Measure in rounds until the cause is known or no time is left, then look for the smallest perturbation."""
        number = 0
        with suppress(Enough):
            while not self.verdict.is_known:
                self._round(min(self._times << number, _MOST), self._seed + number)
                number += 1
        if not self._until_fail:
            with suppress(Enough):
                self._narrow()

    def _round(self, times: int, seed: int) -> None:
        # Twice with one seed: repetitions that fail in both runs show a cause in the seed.
        first, second = (self._run_plainly(times, seed, share) for share in _SHARES)
        self.pairs += _pairs(first.failed, second.failed)
        # A seed that failed twice is the shortest way to repeat the failure.
        for number, failed in first.failed.items():
            if failed and second.failed.get(number):
                self._failing_seed = seed_of(self._nodeid, number, seed)
        # More runs of a test that always fails teach nothing; a few show that no perturbation helps.
        # Half as many as in a plain run: there are four times as many plain runs, against which 4 failures of 10 are
        # enough, and most of the time of a short test goes into the start of each run.
        times = CONFIRMATIONS if self.plain.failed and not self.plain.passed else max(1, times // 2)
        for index, row in enumerate(self.table):
            verdict = self.verdict
            if verdict.is_known and verdict.cause is not Cause.DETERMINISTIC:
                return  # the time that is left is for the smallest perturbation
            if row == AFTER:
                self._run_after_others(seed)
            else:
                # A slow perturbation, such as starved processors, would otherwise leave no time for those after it.
                share = 1 / (len(self.table) - index)
                self._run(row.name, Trial(words=row.strengths[0], times=times, seed=seed, share=share))

    def _run_plainly(self, times: int, seed: int, share: float) -> Outcomes:
        trial = Trial(times=times, seed=seed, share=share)
        outcomes = self._run("plain", trial)
        if not outcomes.is_empty:
            return outcomes
        # Its part of the time did not suffice for one repetition: without plain runs, no other run says anything.
        outcomes = self._run("plain", msgspec.structs.replace(trial, share=1.0, times=1))
        if outcomes.is_empty:
            raise Enough  # nor did all of it, or the test is skipped
        return outcomes

    def _run_after_others(self, seed: int) -> None:
        # A test that fails ends its processes, so those after it would run without the others.
        while self._others:
            probe = self._attempt(Trial(words=AFTER.strengths[0], seed=seed, before=self._others))
            kept = tuple(each for each in self._others if each not in probe.broken)
            if kept == self._others:
                break
            self._others = kept
        for number in range(CONFIRMATIONS if self._others else 0):
            # Each with another seed: with one seed the test may fail or pass each time for that reason alone.
            trial = Trial(words=AFTER.strengths[0], seed=seed + number, before=self._others)
            tally = self._run(AFTER.name, trial).tally
            if tally.rate == round(self.plain.rate):
                return  # as it mostly is without the others

    def _run(self, name: str, trial: Trial) -> Outcomes:
        outcomes = self._attempt(trial)
        if outcomes.is_empty:
            return outcomes  # the time was over before the first repetition
        tally = outcomes.tally
        if name == "plain":
            self.plain += tally
            self._say(name, self.plain)
        else:
            self.perturbed[name] = self.perturbed.get(name, Tally()) + tally
            self._say(name, self.perturbed[name])
        if tally.failed and self._smallest is None:
            self._smallest = trial
        if tally.failed and self._until_fail:
            raise Enough
        return outcomes

    def _narrow(self) -> None:
        """Look for the smallest perturbation."""
        verdict = self.verdict
        row = next((row for row in self.table if row.name == verdict.by), None)
        if row is None:
            return
        if row == AFTER:
            self._smallest = Trial(words=row.strengths[0], seed=self._seed, before=self._others)
            self._halve(fails=self.perturbed[row.name].rate > self.plain.rate)
            return
        for words in row.strengths if not row.calms else ():
            trial = Trial(words=words, times=self._times, seed=self._seed)
            # The rows are from strong to weak, and the strongest one has been measured.
            if words != row.strengths[0] and not is_changed(row, self.plain, self._attempt(trial).tally):
                return
            self._smallest = trial

    def _halve(self, *, fails: bool) -> None:
        """Leave out half of the tests before, as long as the others alone have the same effect."""
        assert self._smallest is not None
        trial = self._smallest
        while len(trial.before) > 1:
            middle = len(trial.before) // 2
            # A test that breaks another one together with a third one in the other half ends the search: no
            # half alone has the effect.
            for half in (trial.before[middle:], trial.before[:middle]):
                smaller = Trial(words=trial.words, seed=trial.seed, before=half)
                outcomes = self._attempt(smaller)
                if outcomes.failed and all(failed == fails for failed in outcomes.failed.values()):
                    self._smallest = trial = smaller
                    break
            else:
                return


def _pairs(first: Mapping[int, bool], second: Mapping[int, bool]) -> Pairs:
    both = [(failed, second[number]) for number, failed in first.items() if number in second]
    return Pairs(
        both=both.count((True, True)),
        first=both.count((True, False)),
        second=both.count((False, True)),
        neither=both.count((False, False)),
    )
