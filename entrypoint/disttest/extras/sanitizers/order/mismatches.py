"""Find different calls of ranks at the same number of a group, and equal calls with unfit tensors. Pure functions.

Ranks may also number the groups themselves differently: each process counts them, and ranks meet by number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from disttest.extras.sanitizers.order.exchanges import Exchange, Exchanges
from disttest.extras.sanitizers.order.order_findings import NAME, OrderFindingKind, at, describe, make_finding
from disttest.extras.sanitizers.order.stream import CallSignature, GroupMaking, Stream
from disttest.extras.sanitizers.sanitizer import Consequence
from disttest.model import PluginFinding, RankCalls, SeenCall, rank_names
from disttest.observe import Spec

_OPERATION = Consequence(
    "Over gloo the mismatch goes unnoticed until a rank waits, which hangs. NCCL hangs, or mixes up their data.",
    "Call the same collectives in the same order on all ranks of the group. A condition around one of them must be true "
    "on all ranks or on none.",
)
_REDUCTION = Consequence(
    "Each rank applies another reduction. gloo and NCCL do not notice, and the numbers are wrong.",
    "Pass the same reduce operation on all ranks.",
)
_ROOT = Consequence(
    "Each root waits for ranks that wait for another root. gloo and NCCL hang at the first wait, or data come from the "
    "wrong rank.",
    "Pass the same root on all ranks, as a rank of the default group unless it is given as group_src or group_dst.",
)
_DTYPE = Consequence(
    "The bytes of one type are read as the other one. If elements have the same size, gloo and NCCL do not notice, and the "
    "numbers are wrong. Other sizes abort or hang.",
    "Convert the tensor to one dtype on all ranks before the call.",
)
_SHAPE = Consequence(
    "Elements are paired in memory order, whatever the shapes are. With equal numbers of elements gloo and NCCL do not "
    "notice, and the numbers are wrong. Other sizes abort, hang or are cut off.",
    "Use the same shape on all ranks; flatten the tensor on all ranks if memory order is intended.",
)

_SPLITS = Consequence(
    "If the receiver expects more than is sent, gloo leaves the rest of its tensor unchanged. Other sizes abort or hang, and "
    "NCCL hangs.",
    "Exchange the sizes first, so that each rank expects as many rows as the other one sends.",
)

_SAME_SHAPES = frozenset({"allreduce", "allreduce_coalesced", "broadcast", "reduce"})
_SAME_SIZES = frozenset(
    {
        *("allgather_base", "allgather_into_tensor_coalesced", "allgather_coalesced"),
        *("reduce_scatter_base", "reduce_scatter_tensor_coalesced", "gather_into_tensor"),
    }
)
_BYTES = frozenset({"uint8", "int8"})
"""Types as which tensors of other types are viewed if only their bytes matter."""


class _Difference(NamedTuple):
    consequence: Consequence
    first: int
    """A rank."""
    second: int
    """A rank that differs from ``first``."""


_Check = Callable[[Exchange, Exchanges], _Difference | None]


def find_mismatches(exchanges: Exchanges) -> Iterator[PluginFinding]:
    """Yield one finding for each pair of lines that disagree."""
    reported: set[tuple[str, ...]] = set()
    for exchange in exchanges.all():
        if not exchange.is_complete:
            continue
        # The first difference only: ranks that call other operations also differ in tensors and roots.
        difference = next(filter(None, (check(exchange, exchanges) for check in _checks(exchange))), None)
        if difference is None:
            continue
        pair = (difference.first, difference.second)
        # A line in a loop disagrees in each turn, and that is one mistake.
        lines = (difference.consequence.effect, *(exchanges.of(exchange, rank).where for rank in pair))
        if lines not in reported:
            reported.add(lines)
            yield _finding(exchange, difference, exchanges)


def _checks(exchange: Exchange) -> tuple[_Check, ...]:
    if exchange.is_p2p:
        return (_other_message,)
    return (_other_operation, _other_root, _other_reduction, _other_dtype, _other_shape)


def _finding(exchange: Exchange, difference: _Difference, exchanges: Exchanges) -> PluginFinding:
    first, second = (exchanges.of(exchange, rank) for rank in difference[1:])
    # The message names two kinds of calls. Ranks that differ from both are left out.
    like_first = [rank for rank in exchange.members if exchanges.of(exchange, rank) == first]
    like_second = [rank for rank in exchange.members if exchanges.of(exchange, rank) == second]
    parts = (
        f"{rank_names(who)} called {describe(call)}{at(call)}"
        for who, call in ((like_first, first), (like_second, second))
    )
    what = "message" if exchange.is_p2p else "collective"
    return make_finding(
        OrderFindingKind.MISMATCH,
        f"ranks disagree at {what} #{exchange.number} of group {exchange.group.title}: {', '.join(parts)}",
        difference.consequence,
        exchanges,
        {rank: [exchange.calls[rank]] for rank in (like_first[0], like_second[0])},
    )


def _differing(
    exchange: Exchange, exchanges: Exchanges, consequence: Consequence, key: Callable[[CallSignature], object]
) -> _Difference | None:
    """Return the first rank that differs from those before it; None if all agree."""
    first = exchange.members[0]
    expected = key(exchanges.of(exchange, first))
    other = next((rank for rank in exchange.members if key(exchanges.of(exchange, rank)) != expected), None)
    return None if other is None else _Difference(consequence, first, other)


def _other_operation(exchange: Exchange, exchanges: Exchanges) -> _Difference | None:
    return _differing(exchange, exchanges, _OPERATION, lambda call: call.family)


def _other_root(exchange: Exchange, exchanges: Exchanges) -> _Difference | None:
    return _differing(exchange, exchanges, _ROOT, lambda call: call.root)


def _other_reduction(exchange: Exchange, exchanges: Exchanges) -> _Difference | None:
    if not all(exchanges.of(exchange, rank).reduce_op for rank in exchange.members):
        return None  # a call from C++ does not show its reduction
    return _differing(exchange, exchanges, _REDUCTION, lambda call: call.reduce_op)


def _other_dtype(exchange: Exchange, exchanges: Exchanges) -> _Difference | None:
    known = [
        rank for rank in exchange.members if _dtypes(exchanges.of(exchange, rank))
    ]  # some ranks may send nothing
    other = next(
        (r for r in known if _dtypes(exchanges.of(exchange, r)) != _dtypes(exchanges.of(exchange, known[0]))),
        None,
    )
    return None if other is None else _Difference(_DTYPE, known[0], other)


def _dtypes(call: CallSignature) -> set[str]:
    return {each.dtype for each in call.inputs + call.outputs}


def _other_shape(exchange: Exchange, exchanges: Exchanges) -> _Difference | None:
    calls = [exchanges.of(exchange, rank) for rank in exchange.members]
    # all_gather with a list meets all_gather_into_tensor: one family, but shapes that cannot be compared.
    if len({call.op for call in calls}) > 1:
        return None
    match calls[0].op:
        case op if op in _SAME_SHAPES:
            return _differing(exchange, exchanges, _SHAPE, lambda call: list(map(_form, call.inputs)))
        case op if op in _SAME_SIZES:
            return _differing(exchange, exchanges, _SHAPE, lambda call: [each.numel for each in call.inputs])
        case "allgather" | "gather":
            return _other_parts(exchange, exchanges, lambda call: call.outputs, lambda call: call.inputs)
        case "reduce_scatter" | "scatter":
            return _other_parts(exchange, exchanges, lambda call: call.inputs, lambda call: call.outputs)
        case "alltoall_base":
            return _other_splits(exchange, exchanges)
        case _:
            return None  # shapes may differ between ranks


def _form(spec: Spec) -> list[int]:
    """Return the shape without dimensions of length one, which change no order: a loss has shape [] or [1]."""
    return [length for length in spec.shape if length != 1]


_Tensors = Callable[[CallSignature], Sequence[Spec]]


def _other_parts(
    exchange: Exchange, exchanges: Exchanges, lists: _Tensors, own: _Tensors
) -> _Difference | None:
    """Find a rank whose own tensor differs from its entry in the list of another rank."""
    for holder in exchange.members:
        parts = lists(exchanges.of(exchange, holder))
        if len(parts) != len(exchange.members):
            continue  # only the root has the list
        for rank, part in zip(exchange.members, parts, strict=True):
            mine = own(exchanges.of(exchange, rank))
            if holder != rank and len(mine) == 1 and _form(mine[0]) != _form(part):
                return _Difference(_SHAPE, holder, rank)
    return None


def _other_splits(exchange: Exchange, exchanges: Exchanges) -> _Difference | None:
    """Find a rank that gives another one a different number of rows than that one takes."""
    members = exchange.members
    rows = {rank: _rows(exchanges.of(exchange, rank), len(members)) for rank in members}
    for place, giver in enumerate(members):
        for other, taker in enumerate(members):
            given, taken = rows[giver].given, rows[taker].taken
            # Unknown rows (an empty list) agree with everything.
            if given and taken and given[other] != taken[place]:
                return _Difference(_SPLITS, giver, taker)
    return None


class _Rows(NamedTuple):
    """Numbers of rows by rank; empty if unknown."""

    taken: Sequence[int]
    given: Sequence[int]


def _rows(call: CallSignature, size: int) -> _Rows:
    taken, given = call.splits
    return _Rows(taken or _equal_parts(call.outputs, size), given or _equal_parts(call.inputs, size))


def _equal_parts(specs: Sequence[Spec], size: int) -> Sequence[int]:
    # all_to_all_single without sizes divides the first dimension evenly.
    rows = specs[0].shape[0] if specs and specs[0].shape else 0
    return [] if rows % size else [rows // size] * size


def _other_message(exchange: Exchange, exchanges: Exchanges) -> _Difference | None:
    sender, receiver = exchange.members
    tensors = (*exchanges.of(exchange, sender).inputs, *exchanges.of(exchange, receiver).outputs)
    if len(tensors) != 2:
        return None  # unknown
    sent, taken = tensors
    if sent.dtype != taken.dtype:
        return None if _BYTES & {sent.dtype, taken.dtype} else _Difference(_DTYPE, sender, receiver)
    return _Difference(_SHAPE, sender, receiver) if sent.numel != taken.numel else None


_UNLIKE = Consequence(
    "Ranks meet by the numbers of groups. gloo passes as long as no two ranks meet under different numbers. The next group, "
    "or the first collective over NCCL, hangs or connects the wrong ranks.",
    "Make all groups on all ranks in the same order, also on ranks that are not members, or pass "
    "use_local_synchronization=True.",
)


def find_differing_groups(streams: Mapping[int, Stream]) -> Iterator[PluginFinding]:
    """Yield a finding for the first number under which ranks made different groups, or only some made one."""
    made = {rank: _by_number(stream) for rank, stream in streams.items()}
    # In the order of making, of all ranks: the first difference shifts all numbers after it, so it alone is
    # reported.
    for key in dict.fromkeys(key for each in made.values() for key in each):
        found = {rank: each.get(key) for rank, each in made.items()}
        if _are_unlike(list(found.values())):
            yield _numbering_finding(key[0], found)
            return


def _are_unlike(makings: Sequence[GroupMaking | None]) -> bool:
    if len({making and (making.ranks, making.dimension) for making in makings}) == 1:
        return False
    # A rank alone in its group meets no other rank under that number.
    return not all(making and len(making.ranks) == 1 and not making.dimension for making in makings)


def _by_number(stream: Stream) -> dict[tuple[str, int], GroupMaking]:
    """Map number and occurrence to the group: torch restarts counting after the default group is destroyed."""
    given: Counter[str] = Counter()
    found = {}
    for making in stream.makings:
        found[making.number, given[making.number]] = making
        given[making.number] += 1
    return found


def _numbering_finding(number: str, found: Mapping[int, GroupMaking | None]) -> PluginFinding:
    # torch names groups by a counter of the process:
    # https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group
    by_call: dict[str, list[int]] = {}
    for rank, making in found.items():
        by_call.setdefault(_describe(making), []).append(rank)
    parts = ", ".join(f"{rank_names(ranks)} {call}" for call, ranks in by_call.items())
    kind = OrderFindingKind.EXTRA if None in found.values() else OrderFindingKind.MISMATCH
    return PluginFinding(
        finder=NAME,
        kind=str(kind),
        message=f"ranks disagree about group #{number}: {parts}",
        effect=_UNLIKE.effect,
        advice=_UNLIKE.advice,
        orders=tuple(
            RankCalls(rank=rank, calls=(_shown(making),))
            for rank, making in found.items()
            if making is not None
        ),
    )


def _describe(making: GroupMaking | None) -> str:
    if making is None:
        return "never made it"
    place = f" at {making.where}" if making.where else ""
    dimension = f" for {making.dimension}" if making.dimension else ""
    return f"made it of {rank_names(making.ranks)}{dimension}{place}"


def _shown(making: GroupMaking) -> SeenCall:
    what = f"new_group of {rank_names(making.ranks)}, group #{making.number}"
    return SeenCall(what=what, file=making.file, line=making.line, decides=True)
