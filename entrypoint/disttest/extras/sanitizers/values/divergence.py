"""Find where two recordings of one test first differ, and print it for ``disttest diverge``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import click

from disttest.errors import UsageError
from disttest.extras.sanitizers.values.contents import differ, first_difference
from disttest.extras.sanitizers.values.observations import Observation, at, describe, observations_of
from disttest.extras.sanitizers.values.trace import Role, TensorPlace
from disttest.extras.sanitizers.values.values_file import ValuesFile, pairs, read_recordings
from disttest.model import Frozen
from disttest.reports.text import count, one_line

_SIZE_INDEPENDENT = frozenset({Role.WRAPPED, Role.GRADIENT, Role.BEFORE, Role.PARAMETER})
"""Roles whose values data-parallel training keeps equal, however many ranks share the work."""


class Divergence(Frozen):
    """The first difference between two runs."""

    rank: int
    """Rank in both worlds."""
    message: str
    """Description in one line: the tensor, its values in both runs, and the place."""
    same: int
    """Number of equal tensors of the rank before it."""


def find_divergence(one: ValuesFile, other: ValuesFile, tolerance: float | None) -> Divergence | None:
    """Find the first difference, if any.

    Worlds of one size are compared rank by rank, in all observations. Of worlds with different sizes only the first
    ranks' parameters are compared.

    Args:
        one: recording of a test.
        other: recording of the same test in another run.
        tolerance: see :func:`disttest.extras.sanitizers.values.contents.differ`.
    """
    found = [
        (divergence, position)
        for rank in _ranks(one, other)
        for divergence, position in [_part_of_rank(one, other, rank, tolerance)]
        if divergence is not None
    ]
    # The earliest position of all ranks: later differences on other ranks follow from it.
    return min(found, key=lambda each: (each[1], each[0].rank))[0] if found else None


def compared(one: ValuesFile, other: ValuesFile) -> int:
    """Return the number of tensors that can be compared."""
    return sum(
        min(len(_observations(one, other, rank)), len(_observations(other, one, rank)))
        for rank in _ranks(one, other)
    )


def _ranks(one: ValuesFile, other: ValuesFile) -> Sequence[int]:
    return sorted(one.ranks.keys() & other.ranks.keys()) if one.size == other.size else (0,)


def _observations(recording: ValuesFile, other: ValuesFile, rank: int) -> list[Observation]:
    if rank not in recording.ranks:
        return []
    observations = observations_of(rank, recording.ranks[rank])
    if recording.size == other.size:
        return list(observations)
    return [
        observation
        for observation in observations
        if observation.place.role in _SIZE_INDEPENDENT and not _is_wrapping(observation)
    ]


def _is_wrapping(observation: Observation) -> bool:
    """Whether it is a parameter at wrapping, which only one of the two runs may have."""
    return observation.place.role is Role.WRAPPED


_Lane = list[tuple[int, Observation]]
"""Observations whose order is the same in all runs, with their positions among all observations of the rank."""


def _part_of_rank(
    one: ValuesFile, other: ValuesFile, rank: int, tolerance: float | None
) -> tuple[Divergence | None, int]:
    mine, yours = _lanes(_observations(one, other, rank)), _lanes(_observations(other, one, rank))
    # One run has a group that the other lacks. Then the first difference in the order of the rank shows more.
    if mine.keys() != yours.keys():
        mine, yours = ({(0, False): sorted(chain.from_iterable(lanes.values()))} for lanes in (mine, yours))
    found = [
        Divergence(rank=rank, message=message, same=position)
        for group, lane in mine.items()
        for message, position in [_part_of_lane(lane, yours[group], tolerance)]
        if message
    ]
    first = min(found, key=lambda each: each.same, default=None)
    return first, first.same if first else 0


def _lanes(observations: Sequence[Observation]) -> dict[tuple[int, bool], _Lane]:
    """Split observations by process group, since threads of a rank may use one group each. Modules have no group.

    torch counts groups through all tests of a world, so only the order of their names is the same in two runs. Results
    are sorted in the order of their calls: the order in which several pending ones finish is a matter of timing.
    """
    # Shorter names first, so that "9" comes before "10".
    names = sorted(
        {observation.place.group_id for observation in observations}, key=lambda name: (len(name), name)
    )
    lanes: defaultdict[tuple[int, bool], _Lane] = defaultdict(list)
    for position, observation in enumerate(observations):
        group, is_result = names.index(observation.place.group_id), observation.place.role is Role.OUTPUT
        lanes[group, is_result].append((position, observation))
    for (_, are_results), lane in lanes.items():
        if are_results:
            lane.sort(
                key=lambda each: (each[1].number, each[1].place.peer or 0, each[1].place.index, each[0])
            )
    return lanes


def _part_of_lane(left: _Lane, right: _Lane, tolerance: float | None) -> tuple[str, int]:
    """Return the first difference of two lanes as a line, with its position; the line is empty if there is none."""
    for (position, mine), (_, yours) in zip(left, right, strict=False):
        if message := _compare(mine, yours, tolerance):
            return message, position
    if len(left) == len(right):
        return "", 0
    which, longer = ("A", left) if len(left) > len(right) else ("B", right)
    position, more = longer[min(len(left), len(right))]
    return f"only {which} goes on, with the {describe(more)}{at(more.place)}", position


def _compare(mine: Observation, yours: Observation, tolerance: float | None) -> str:
    """Describe how two observations differ; empty if they do not."""
    if _thing(mine) != _thing(yours):
        return (
            f"A has the {describe(mine)}{at(mine.place)}, where B has the {describe(yours)}{at(yours.place)}"
        )
    kinds = [f"{place.dtype}{list(place.shape)}" for place in (mine.place, yours.place)]
    if kinds[0] != kinds[1]:
        return (
            f"the {describe(mine)} is {kinds[0]} in A{at(mine.place)}, and {kinds[1]} in B{at(yours.place)}"
        )
    if mine.is_of_call and mine.place.dtype == "uint8":
        return ""  # may be a pickle: it contains addresses, and garbage behind a short one
    if not differ(mine.content, yours.content, mine.place.dtype, tolerance):
        return ""
    return f"the {describe(mine)} differs, {'; '.join(_sides(mine, yours))}"


def _sides(mine: Observation, yours: Observation) -> Iterator[str]:
    found = first_difference(mine.place, mine.content, yours.content)
    yield f"first at {found.at}"
    for index, (letter, observation) in enumerate((("A", mine), ("B", yours))):
        value = f" {found.values[index]}" if found.values else ""
        norm = f" (norm {observation.content.norm:.6g})" if observation.content.norm is not None else ""
        yield f"{letter}{at(observation.place)}:{value or ' other numbers'}{norm}"


def _thing(observation: Observation) -> tuple[object, ...]:
    """Key that the same observation has in two runs."""
    place: TensorPlace = observation.place
    if observation.is_of_call:
        return (
            place.role,
            place.name,
            place.kind,
            place.group,
            place.peer,
            place.root,
            place.index,
            observation.number,
        )
    return (place.role, place.model, place.name, place.index, observation.number)


def print_divergences(first: Path, second: Path, text: str, tolerance: float | None) -> bool:
    """Print the comparison of each test that both runs have. Return whether any test differs.

    Args:
        first: results directory of a run.
        second: results directory of the other run.
        text: part of the ids of the tests to compare.
        tolerance: relative tolerance of numbers; None: every bit counts.

    Raises:
        UsageError: the runs have no such test in common.
    """
    found = [
        (one, other)
        for one, other in pairs(read_recordings(first), read_recordings(second))
        if text in one.nodeid or text in other.nodeid
    ]
    if not found:
        wanted = f" with {text!r} in its id" if text else ""
        raise UsageError(f"{first} and {second} have no test{wanted} in common")
    # A list, not any() over a generator, which would print no test after the first difference.
    diverged = [_print_one(one, other, tolerance) for one, other in found]
    return any(diverged)


def _print_one(one: ValuesFile, other: ValuesFile, tolerance: float | None) -> bool:
    """Print the comparison of one test. Return whether it differs."""
    divergence = find_divergence(one, other, tolerance)
    names = one.nodeid if one.nodeid == other.nodeid else f"{one.nodeid} and {other.nodeid}"
    if divergence is None:
        click.echo(f"same: {one_line(names)}: {count(compared(one, other), 'tensor')}")
        return False
    click.echo(f"differs: {one_line(names)}")
    click.echo(f"  rank {divergence.rank}: {one_line(divergence.message, 2000)}")
    click.echo(f"  {count(divergence.same, 'tensor')} before it the same on this rank")
    return True
