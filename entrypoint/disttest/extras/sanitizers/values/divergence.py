"""Where two recordings of one test part first. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

from disttest.extras.sanitizers.values.contents import differ, first_difference
from disttest.extras.sanitizers.values.sights import Sight, at, describe, sights_of
from disttest.extras.sanitizers.values.trace import Role, TensorPlace
from disttest.extras.sanitizers.values.values_file import ValuesFile
from disttest.model import Frozen

_WHATEVER_THE_SIZE = frozenset({Role.WRAPPED, Role.GRADIENT, Role.BEFORE, Role.PARAMETER})
"""What data parallel training has the same however many ranks share the work."""


class Parting(Frozen):
    """Where two runs part."""

    rank: int
    """Of both worlds."""
    message: str
    """One line: what it is, in both, and where."""
    same: int
    """Tensors that the rank had the same before."""


def find_parting(one: ValuesFile, other: ValuesFile, tolerance: float | None) -> Parting | None:
    """The first difference; None where there is none.

    Worlds of one size are compared rank by rank, in everything that they have seen. Of worlds of two sizes only what
    their first ranks have of the parameters.

    Args:
        one: what was recorded of a test.
        other: the same test, in another run.
        tolerance: see :func:`disttest.extras.sanitizers.values.contents.differ`.
    """
    found = [
        (parting, position)
        for rank in _ranks(one, other)
        for parting, position in [_part_of_rank(one, other, rank, tolerance)]
        if parting is not None
    ]
    return min(found, key=lambda each: (each[1], each[0].rank))[0] if found else None


def compared(one: ValuesFile, other: ValuesFile) -> int:
    """How many tensors of both can be compared."""
    return sum(
        min(len(_sights(one, other, rank)), len(_sights(other, one, rank))) for rank in _ranks(one, other)
    )


def _ranks(one: ValuesFile, other: ValuesFile) -> Sequence[int]:
    return sorted(one.ranks.keys() & other.ranks.keys()) if one.size == other.size else (0,)


def _sights(recording: ValuesFile, other: ValuesFile, rank: int) -> list[Sight]:
    if rank not in recording.ranks:
        return []
    sights = sights_of(rank, recording.ranks[rank])
    if recording.size == other.size:
        return list(sights)
    return [sight for sight in sights if sight.place.role in _WHATEVER_THE_SIZE and not _is_wrapping(sight)]


def _is_wrapping(sight: Sight) -> bool:
    """Only one of the two may be wrapped."""
    return sight.place.role is Role.WRAPPED


_Lane = list[tuple[int, Sight]]
"""What is seen one after the other in any run, with its position among all that the rank has seen."""


def _part_of_rank(
    one: ValuesFile, other: ValuesFile, rank: int, tolerance: float | None
) -> tuple[Parting | None, int]:
    mine, yours = _lanes(_sights(one, other, rank)), _lanes(_sights(other, one, rank))
    if mine.keys() != yours.keys():
        mine, yours = ({(0, False): sorted(chain.from_iterable(lanes.values()))} for lanes in (mine, yours))
    found = [
        Parting(rank=rank, message=message, same=position)
        for group, lane in mine.items()
        for message, position in [_part_of_lane(lane, yours[group], tolerance)]
        if message
    ]
    first = min(found, key=lambda each: each.same, default=None)
    return first, first.same if first else 0


def _lanes(sights: Sequence[Sight]) -> dict[tuple[int, bool], _Lane]:
    """By process group, since several threads of a rank may use a group each; modules and parameters have no group.

    Torch counts groups through all tests of a world, so that only their order is the same in two runs. Results are in the
    order of their calls: in which order ranks learn of them is a matter of time where several are waited for together.
    """
    names = sorted({sight.place.group_id for sight in sights}, key=lambda name: (len(name), name))
    lanes: defaultdict[tuple[int, bool], _Lane] = defaultdict(list)
    for position, sight in enumerate(sights):
        group, is_result = names.index(sight.place.group_id), sight.place.role is Role.OUTPUT
        lanes[group, is_result].append((position, sight))
    for (_, are_results), lane in lanes.items():
        if are_results:
            lane.sort(
                key=lambda each: (each[1].number, each[1].place.peer or 0, each[1].place.index, each[0])
            )
    return lanes


def _part_of_lane(left: _Lane, right: _Lane, tolerance: float | None) -> tuple[str, int]:
    """How two lanes differ first, in a line, and at which position; the line is empty if they do not."""
    for (position, mine), (_, yours) in zip(left, right, strict=False):
        if message := _compare(mine, yours, tolerance):
            return message, position
    if len(left) == len(right):
        return "", 0
    which, longer = ("A", left) if len(left) > len(right) else ("B", right)
    position, more = longer[min(len(left), len(right))]
    return f"only {which} goes on, with the {describe(more)}{at(more.place)}", position


def _compare(mine: Sight, yours: Sight, tolerance: float | None) -> str:
    """How two sights differ, in a line; empty if they do not."""
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
        return ""  # perhaps a pickle, which may hold addresses, and behind a short one there is whatever was in memory
    if not differ(mine.content, yours.content, mine.place.dtype, tolerance):
        return ""
    return f"the {describe(mine)} differs, {'; '.join(_sides(mine, yours))}"


def _sides(mine: Sight, yours: Sight) -> Iterator[str]:
    found = first_difference(mine.place, mine.content, yours.content)
    yield f"first at {found.at}"
    for index, (letter, sight) in enumerate((("A", mine), ("B", yours))):
        value = f" {found.values[index]}" if found.values else ""
        norm = f" (norm {sight.content.norm:.6g})" if sight.content.norm is not None else ""
        yield f"{letter}{at(sight.place)}:{value or ' other numbers'}{norm}"


def _thing(sight: Sight) -> tuple[object, ...]:
    """What two runs call the same."""
    place: TensorPlace = sight.place
    if sight.is_of_call:
        return (
            place.role,
            place.name,
            place.kind,
            place.group,
            place.peer,
            place.root,
            place.index,
            sight.number,
        )
    return (place.role, place.model, place.name, place.index, sight.number)
