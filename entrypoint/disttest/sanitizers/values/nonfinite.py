"""Where NaN or infinity came from, and how it got to other ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from disttest.model import SanitizerFinding
from disttest.sanitizers.values.contents import index_of
from disttest.sanitizers.values.sights import Board, Sight, at, describe, subject
from disttest.sanitizers.values.trace import Role
from disttest.sanitizers.values.value_findings import Advice, make_finding
from disttest.sanitizers.values.value_kinds import Kind
from disttest.sanitizers.words import names

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
_ADDING = frozenset({"SUM", "AVG", "PREMUL_SUM", ""})
_WORDS = {"nan": "NaN", "inf": "infinity"}
_ADVICE = Advice(
    "Everything that is computed from it is lost, on all ranks that a reduction gives it to.",
    "Look at the first place: a division by zero, a logarithm or root of a number below it, or a sum too large for its dtype.",
)


def find_nonfinite(board: Board) -> Iterator[SanitizerFinding]:
    """Where it appeared first, if it has done harm: masks of infinity and the like have not."""
    harm = _harm(board)
    if harm is None:
        return
    first = {rank: bad for rank in board.of_rank if (bad := _first_bad(board, rank))}
    source = min(
        first.values(), key=lambda sight: (sight.place.role is Role.OUTPUT, sight.position, sight.rank)
    )
    others = sorted(sight.rank for sight in first.values() if sight.rank != source.rank)
    index = index_of(source.content.bad_at, source.place)
    reached = "" if harm is source else f"; it got into {describe(harm)}{at(harm.place)}"
    message = (
        f"{_WORDS[source.content.bad]} first appeared on rank {source.rank} in the {describe(source)}"
        f"{at(source.place)}, at index {index}{_spread(board, source, others)}{reached}"
    )
    yield make_finding(Kind.NONFINITE, message, _ADVICE, board, list(first.values()))


def _first_bad(board: Board, rank: int) -> Sight | None:
    return next((sight for sight in board.of_rank[rank] if sight.content.bad), None)


def _harm(board: Board) -> Sight | None:
    """The first parameter or sum that has it without having been given it on purpose."""
    found = (sight for rank in board.of_rank for sight in board.of_rank[rank] if _is_harm(board, sight))
    return min(found, key=lambda sight: (sight.position, sight.rank), default=None)


def _is_harm(board: Board, sight: Sight) -> bool:
    if not sight.content.bad:
        return False
    if sight.place.role is Role.PARAMETER:
        begun = board.matching(Role.BEFORE, sight).get(sight.rank)
        return begun is None or not begun.content.bad
    if sight.place.role is not Role.OUTPUT or sight.place.name not in _REDUCING:
        return False
    if sight.place.kind not in _ADDING:
        return False
    given = board.together.get((Role.INPUT, *sight.same_on_ranks[1:]), {}).values()
    overflowed = bool(given) and not any(each.content.bad for each in given)
    return overflowed or sight.content.bad == "nan"


def _spread(board: Board, source: Sight, others: list[int]) -> str:
    if not others:
        return ""
    outputs = (
        sight for sight in board.of_rank[others[0]] if sight.place.role is Role.OUTPUT and sight.content.bad
    )
    carrier = next(outputs, None)
    if carrier is None or carrier is source:
        return f", then on {names(others)}"
    return f"; {subject(carrier)}{at(carrier.place)} took it to {names(others)}"
