"""Find the origin of NaN or infinity, and how it reached other ranks. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from disttest.extras.sanitizers.sanitizer import Consequence
from disttest.extras.sanitizers.values.contents import index_of
from disttest.extras.sanitizers.values.sights import Sight, SightIndex, at, describe, subject
from disttest.extras.sanitizers.values.trace import Role
from disttest.extras.sanitizers.values.value_findings import make_finding
from disttest.extras.sanitizers.values.value_kinds import ValueFindingKind
from disttest.model import PluginFinding, rank_names

_REDUCING = frozenset(
    {
        "allreduce",
        "allreduce_coalesced",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
    }
)
_OF_COMPUTATION = frozenset({Role.GIVEN, Role.MODULE, Role.ROOT, Role.INPUT, Role.OUTPUT})
_COMPUTING = frozenset({"SUM", "AVG", "PREMUL_SUM", "PRODUCT", ""})
"""Reductions that make new numbers. MIN and MAX may start with infinity on purpose."""
_WORDS = {"nan": "NaN", "inf": "infinity"}
_ADVICE = Consequence(
    "Everything that is computed from it is lost, on all ranks that a reduction gives it to.",
    "Look at the first place: a division by zero, a logarithm or root of a number below it, or a result too large for its dtype.",
)


def find_nonfinite(sight_index: SightIndex) -> Iterator[PluginFinding]:
    """Report its first appearance if it had an effect. Masks of infinity have none."""
    harm = _harm(sight_index)
    if harm is None:
        return
    first = {rank: bad for rank in sight_index.of_rank if (bad := _first_bad(sight_index, rank))}
    source = min(
        first.values(), key=lambda sight: (sight.place.role is Role.OUTPUT, sight.position, sight.rank)
    )
    others = sorted(sight.rank for sight in first.values() if sight.rank != source.rank)
    index = index_of(source.content.bad_at, source.place)
    reached = "" if harm is source else f"; it got into {describe(harm)}{at(harm.place)}"
    message = (
        f"{_WORDS[source.content.bad]} first appeared on rank {source.rank} in the {describe(source)}"
        f"{at(source.place)}, at index {index}{_finite_before(sight_index, source)}"
        f"{_spread(sight_index, source, others)}{reached}"
    )
    yield make_finding(ValueFindingKind.NONFINITE, message, _ADVICE, sight_index, list(first.values()))


def _first_bad(sight_index: SightIndex, rank: int) -> Sight | None:
    # A mask of infinity is an input on purpose.
    bad = (
        sight
        for sight in sight_index.of_rank[rank]
        if sight.content.bad == "nan" or (sight.content.bad and sight.place.role is not Role.GIVEN)
    )
    return next(bad, None)


def _finite_before(sight_index: SightIndex, source: Sight) -> str:
    """Name the last finite observation of the computation: the lines to check begin there.

    A backward pass fails because of the forward, so a line of the forward is named, too.
    """
    if source.place.role is Role.GIVEN:
        return ""
    before = reversed(sight_index.of_rank[source.rank][: source.position])
    seen = [sight for sight in before if sight.place.role in _OF_COMPUTATION]
    told = seen[: 2 if seen and seen[0].place.role is Role.ROOT else 1]
    if not told or any(sight.content.bad for sight in told):
        return ""
    names = " and ".join(f"the {describe(sight)}{at(sight.place)}" for sight in reversed(told))
    return f", after {names}, which {'were' if len(told) > 1 else 'was'} finite"


def _harm(sight_index: SightIndex) -> Sight | None:
    """Return the first parameter, sum or product that is not finite and did not start so."""
    found = (
        sight
        for rank in sight_index.of_rank
        for sight in sight_index.of_rank[rank]
        if _is_harm(sight_index, sight)
    )
    return min(found, key=lambda sight: (sight.position, sight.rank), default=None)


def _is_harm(sight_index: SightIndex, sight: Sight) -> bool:
    if not sight.content.bad:
        return False
    if sight.place.role is Role.PARAMETER:
        begun = sight_index.matching(Role.BEFORE, sight).get(sight.rank)
        return begun is None or not begun.content.bad
    if sight.place.role is not Role.OUTPUT or sight.place.name not in _REDUCING:
        return False
    if sight.place.kind not in _COMPUTING:
        return False
    given = sight_index.together.get((Role.INPUT, *sight.same_on_ranks[1:]), {}).values()
    overflowed = bool(given) and not any(each.content.bad for each in given)
    return overflowed or sight.content.bad == "nan"


def _spread(sight_index: SightIndex, source: Sight, others: list[int]) -> str:
    if not others:
        return ""
    outputs = (
        sight
        for sight in sight_index.of_rank[others[0]]
        if sight.place.role is Role.OUTPUT and sight.content.bad
    )
    carrier = next(outputs, None)
    if carrier is None or carrier is source:
        return f", then on {rank_names(others)}"
    return f"; {subject(carrier)}{at(carrier.place)} took it to {rank_names(others)}"
