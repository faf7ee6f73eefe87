"""The cause of a flaky test, from the numbers of its failures under each perturbation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import comb

from disttest.extras.history.rates import wilson
from disttest.model import Count, Frozen

ALPHA = 0.01
"""Probability of naming a cause for a test that no perturbation affects, over all comparisons together."""


class Cause(StrEnum):
    """Class of a test by the cause of its failures."""

    NEVER_FAILED = "never failed"
    DETERMINISTIC = "deterministic"
    """It fails in every run, whatever is perturbed: it is not flaky."""
    ORDER = "order of tests"
    SEED = "seed"
    TIMING = "timing"
    RESOURCES = "resources"
    MACHINE = "machine"
    """It shares something with other processes of the machine, such as a port, a file or a device."""
    UNKNOWN = "unknown"


class Perturbation(Frozen):
    """A way to run a test differently."""

    name: str
    cause: Cause
    """The cause if it changes the failure rate."""
    help: str
    strengths: tuple[tuple[str, ...], ...]
    """Options of ``disttest run`` for each strength, the strongest first."""
    calms: bool = False
    """Whether it removes the cause, so that a lower rate counts instead of a higher one."""


class Tally(Frozen):
    """Numbers of runs under one perturbation."""

    failed: Count = 0
    passed: Count = 0
    spoiled: Count = 0
    """Runs that the machine spoiled, which neither passed nor failed."""

    @property
    def ran(self) -> int:
        """Number of runs that passed or failed."""
        return self.failed + self.passed

    @property
    def rate(self) -> float:
        """Failure rate; 0 without a run."""
        return self.failed / self.ran if self.ran else 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            failed=self.failed + other.failed,
            passed=self.passed + other.passed,
            spoiled=self.spoiled + other.spoiled,
        )


class Pairs(Frozen):
    """Outcomes of runs that were repeated with their seeds."""

    both: Count = 0
    """Pairs of which both runs failed."""
    first: Count = 0
    """Pairs of which only the first run failed."""
    second: Count = 0
    neither: Count = 0

    def __add__(self, other: Pairs) -> Pairs:
        return Pairs(
            both=self.both + other.both,
            first=self.first + other.first,
            second=self.second + other.second,
            neither=self.neither + other.neither,
        )


class Verdict(Frozen):
    """The class of a test."""

    cause: Cause
    confidence: float = 0.0
    """Probability that chance alone explains the numbers, subtracted from 1; 0 if no cause was found."""
    by: str = ""
    """Name of the perturbation that shows it."""

    @property
    def is_known(self) -> bool:
        """Whether more runs are unnecessary."""
        return self.cause not in (Cause.UNKNOWN, Cause.NEVER_FAILED)


def is_changed(row: Perturbation, plain: Tally, tally: Tally) -> bool:
    """Return whether a perturbation changes the failure rate, without a correction for further comparisons."""
    return _chance(row, plain, tally) < ALPHA


def chance_of_more(more: Tally, less: Tally) -> float:
    """Return the probability that as many of the failures fall into ``more`` by chance (Fisher's exact test, one-sided)."""
    ran, failed = more.ran + less.ran, more.failed + less.failed
    # math.comb is exact, so no library for statistics is needed: the numbers stay below some thousand.
    ways = sum(
        comb(more.ran, hit) * comb(less.ran, failed - hit)
        for hit in range(more.failed, min(more.ran, failed) + 1)
    )
    return ways / comb(ran, failed)


def chance_of_agreement(pairs: Pairs) -> float:
    """Return the probability that as many pairs agree by chance, if each run fails independently of its seed."""
    # Among the pairs whose first run failed, the second must fail more often than among the others.
    return chance_of_more(
        Tally(failed=pairs.both, passed=pairs.first), Tally(failed=pairs.second, passed=pairs.neither)
    )


def classify(
    plain: Tally, pairs: Pairs, perturbed: Mapping[str, Tally], table: Sequence[Perturbation]
) -> Verdict:
    """Return the class of a test.

    Args:
        plain: runs without a perturbation.
        pairs: those of them that were repeated with the same seed.
        perturbed: runs by the name of the perturbation.
        table: all perturbations.
    """
    every = [plain, *perturbed.values()]
    failed, passed = sum(each.failed for each in every), sum(each.passed for each in every)
    spoiled = sum(each.spoiled for each in every)
    # Before all others: what a broken machine did to the rates says nothing about the test.
    if spoiled > failed:
        return Verdict(
            cause=Cause.MACHINE, confidence=wilson(spoiled, spoiled + failed)[0], by="spoiled runs"
        )
    if not failed:
        # Perturbations alone say nothing of the test as users run it: a quieter machine may hide its failure.
        return Verdict(cause=Cause.NEVER_FAILED if plain.passed else Cause.UNKNOWN)
    if not passed:
        # Also after a single run: a test that has never passed is never called flaky.
        return Verdict(cause=Cause.DETERMINISTIC, confidence=wilson(failed, failed)[0])
    return _most_probable(plain, pairs, perturbed, table)


def _most_probable(
    plain: Tally, pairs: Pairs, perturbed: Mapping[str, Tally], table: Sequence[Perturbation]
) -> Verdict:
    chances = [(chance_of_agreement(pairs), Cause.SEED, "seed")]
    chances += [
        (_chance(row, plain, perturbed[row.name]), row.cause, row.name)
        for row in table
        if row.name in perturbed
    ]
    # Bonferroni: so many comparisons have so many chances to mislead, also those that are not made yet.
    adjusted = [(chance * (1 + len(table)), cause, name) for chance, cause, name in chances]
    found = [row for row in adjusted if row[0] < ALPHA]
    # More worlds at a time also take processor time, so they show the machine only if slow processors alone do not fail.
    if any(cause is not Cause.MACHINE for _, cause, _ in found):
        found = [row for row in found if row[1] is not Cause.MACHINE]
    if not found:
        return Verdict(cause=Cause.UNKNOWN)
    chance, cause, name = min(found, key=lambda row: row[0])
    return Verdict(cause=cause, confidence=1 - chance, by=name)


def _chance(row: Perturbation, plain: Tally, tally: Tally) -> float:
    if row.cause is Cause.ORDER:
        # Other tests may break a test, or prepare it.
        return min(1.0, 2 * min(chance_of_more(tally, plain), chance_of_more(plain, tally)))
    return chance_of_more(plain, tally) if row.calms else chance_of_more(tally, plain)
