"""Findings of the sanitizer ``values``: kinds, and the observations of each rank around a finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from disttest.extras.sanitizers.sanitizer import Consequence
from disttest.extras.sanitizers.values.contents import first_difference
from disttest.extras.sanitizers.values.observations import (
    Observation,
    ObservationIndex,
    at,
    describe,
    odd_pair,
)
from disttest.model import PluginFinding, RankCalls, SeenCall


class ValueFindingKind(StrEnum):
    """Kind of a finding; the value is its word in results and reports."""

    OUTPUT = "output"
    """A collective that gives all ranks the same result gave them different numbers."""
    PARAMETER = "parameter"
    """Parameters that should be replicas of each other differ."""
    BUFFER = "buffer"
    """A model in DistributedDataParallel was evaluated with different buffers on the ranks."""
    NONFINITE = "nonfinite"
    """NaN or infinity got into parameters, or into the result of a reduction."""


NAME = "values"
_BEFORE, _AFTER = 6, 2
"""Observations shown before and after the decisive one."""
_MOST_RANKS = 8


def make_finding(
    kind: ValueFindingKind,
    message: str,
    consequence: Consequence,
    observed: ObservationIndex,
    decisive: Sequence[Observation],
) -> PluginFinding:
    """Make a finding.

    Args:
        kind: kind of the finding.
        message: the ranks, their values and the lines.
        consequence: effect and advice.
        observed: observations of the test.
        decisive: observations that the finding is about, at most one of each rank.
    """
    return PluginFinding(
        finder=NAME,
        kind=str(kind),
        message=message,
        effect=consequence.effect,
        advice=consequence.advice,
        orders=tuple(
            RankCalls(rank=observation.rank, calls=tuple(_around(observed, observation)))
            for observation in sorted(decisive)[:_MOST_RANKS]
        ),
    )


def _around(observed: ObservationIndex, decisive: Observation) -> Iterator[SeenCall]:
    observations = observed.of_rank[decisive.rank]
    for observation in observations[max(0, decisive.position - _BEFORE) : decisive.position + _AFTER + 1]:
        yield SeenCall(
            what=describe(observation),
            file=observation.place.file,
            line=observation.place.line,
            decides=observation is decisive,
            same=observed.agrees(observation),
        )


def both_values(observations: Sequence[Observation]) -> str:
    """Format ``at index [2] rank 0 has 3, rank 1 has 4``."""
    usual, odd = odd_pair(observations)
    found = first_difference(usual.place, usual.content, odd.content)
    pair = sorted(zip((usual, odd), found.values or ("", ""), strict=True))
    if found.values is None:
        return f"rank {pair[0][0].rank} and rank {pair[1][0].rank} differ first at {found.at}"
    return f"at {found.at} " + ", ".join(
        f"rank {observation.rank} has {value}" for observation, value in pair
    )


def places_of(observations: Sequence[Observation]) -> str:
    """Format `` at test_step.py:39``; several lines are each named once."""
    return " and".join(dict.fromkeys(at(observation.place) for observation in sorted(observations)))
