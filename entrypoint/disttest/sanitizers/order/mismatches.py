"""Ranks that call different things at the same number of a group, or the same thing with tensors that do not fit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from disttest.model import SanitizerFinding
from disttest.observe import Spec
from disttest.sanitizers.order.exchanges import Event, Events
from disttest.sanitizers.order.order_findings import Advice, make_finding
from disttest.sanitizers.order.order_kinds import Kind
from disttest.sanitizers.order.order_words import at, describe
from disttest.sanitizers.order.stream import Signature
from disttest.sanitizers.words import names

_OPERATION = Advice(
    "As long as nobody waits for them both go unnoticed over gloo; whoever waits hangs, and NCCL hangs or mixes up their "
    "data.",
    "Make all ranks of the group call the same collectives in the same order; a condition around one of them must be true "
    "on all ranks or on none.",
)
_REDUCTION = Advice(
    "Every rank reduces by an operation of its own: gloo and NCCL let it pass, and the numbers are wrong.",
    "Call it with the same operation on all ranks.",
)
_ROOT = Advice(
    "Each root waits for ranks that wait for another one: gloo and NCCL hang as soon as somebody waits, or data come from "
    "the wrong rank.",
    "Give all ranks the same root, as a rank of the default group unless it is given as group_src or group_dst.",
)
_DTYPE = Advice(
    "The bytes of one type are read as those of the other: gloo and NCCL let it pass where elements have the same size, and "
    "the numbers are wrong; other sizes abort or hang.",
    "Convert the tensor to one dtype on all ranks before the call.",
)
_SHAPE = Advice(
    "Elements are paired in the order of memory, whatever the shapes say: gloo and NCCL let it pass where there are as many "
    "of them, and the numbers are wrong; other sizes abort, hang or are cut off.",
    "Give the tensor the same shape on all ranks; flatten it on all of them if the order of memory is what is meant.",
)

_SAME_SHAPES = frozenset({"allreduce", "allreduce_coalesced", "broadcast", "reduce"})
_SAME_SIZES = frozenset(
    {
        *("allgather_base", "allgather_into_tensor_coalesced", "allgather_coalesced"),
        *("reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    }
)
_BYTES = frozenset({"uint8", "int8"})
"""What tensors of other types are seen as where only their bytes matter."""


class _Difference(NamedTuple):
    advice: Advice
    first: int
    """A rank."""
    second: int
    """One that differs from it."""


_Check = Callable[[Event, Events], _Difference | None]


def find_mismatches(events: Events) -> Iterator[SanitizerFinding]:
    """One finding for each pair of lines that do not agree."""
    told: set[tuple[str, ...]] = set()
    for event in events.all():
        if not event.is_complete:
            continue
        difference = next(filter(None, (check(event, events) for check in _checks(event))), None)
        if difference is None:
            continue
        pair = (difference.first, difference.second)
        lines = (difference.advice.effect, *(events.of(event, rank).where for rank in pair))
        if lines not in told:
            told.add(lines)
            yield _finding(event, difference, events)


def _checks(event: Event) -> tuple[_Check, ...]:
    if event.is_p2p:
        return (_other_message,)
    return (_other_operation, _other_root, _other_reduction, _other_dtype, _other_shape)


def _finding(event: Event, difference: _Difference, events: Events) -> SanitizerFinding:
    first, second = (events.of(event, rank) for rank in difference[1:])
    like_first = [rank for rank in event.members if events.of(event, rank) == first]
    like_second = [rank for rank in event.members if events.of(event, rank) == second]
    parts = (
        f"{names(who)} called {describe(call)}{at(call)}"
        for who, call in ((like_first, first), (like_second, second))
    )
    what = "message" if event.is_p2p else "collective"
    return make_finding(
        Kind.MISMATCH,
        f"ranks disagree at {what} #{event.number} of group {event.group.title}: {', '.join(parts)}",
        difference.advice,
        events,
        {rank: [event.calls[rank]] for rank in (like_first[0], like_second[0])},
    )


def _differing(
    event: Event, events: Events, advice: Advice, key: Callable[[Signature], object]
) -> _Difference | None:
    """The first rank that differs from those before it; None where all agree."""
    first = event.members[0]
    expected = key(events.of(event, first))
    other = next((rank for rank in event.members if key(events.of(event, rank)) != expected), None)
    return None if other is None else _Difference(advice, first, other)


def _other_operation(event: Event, events: Events) -> _Difference | None:
    return _differing(event, events, _OPERATION, lambda call: call.family)


def _other_root(event: Event, events: Events) -> _Difference | None:
    return _differing(event, events, _ROOT, lambda call: call.root)


def _other_reduction(event: Event, events: Events) -> _Difference | None:
    if not all(events.of(event, rank).reduce_op for rank in event.members):
        return None  # C++ has issued one of them, and does not tell
    return _differing(event, events, _REDUCTION, lambda call: call.reduce_op)


def _other_dtype(event: Event, events: Events) -> _Difference | None:
    known = [
        rank for rank in event.members if _dtypes(events.of(event, rank))
    ]  # some may have nothing to send
    other = next(
        (r for r in known if _dtypes(events.of(event, r)) != _dtypes(events.of(event, known[0]))), None
    )
    return None if other is None else _Difference(_DTYPE, known[0], other)


def _dtypes(call: Signature) -> set[str]:
    return {each.dtype for each in call.inputs + call.outputs}


def _other_shape(event: Event, events: Events) -> _Difference | None:
    calls = [events.of(event, rank) for rank in event.members]
    if len({call.op for call in calls}) > 1:
        return None
    match calls[0].op:
        case op if op in _SAME_SHAPES:
            return _differing(event, events, _SHAPE, lambda call: [each.shape for each in call.inputs])
        case op if op in _SAME_SIZES:
            return _differing(event, events, _SHAPE, lambda call: [each.numel for each in call.inputs])
        case "allgather" | "gather":
            return _other_parts(event, events, lambda call: call.outputs, lambda call: call.inputs)
        case "reduce_scatter" | "scatter":
            return _other_parts(event, events, lambda call: call.inputs, lambda call: call.outputs)
        case _:
            return None  # what may differ from rank to rank


_Tensors = Callable[[Signature], Sequence[Spec]]


def _other_parts(event: Event, events: Events, lists: _Tensors, own: _Tensors) -> _Difference | None:
    """Of lists with one tensor for each rank: whether a rank's own tensor is not what another one's list has for it."""
    for holder in event.members:
        parts = lists(events.of(event, holder))
        if len(parts) != len(event.members):
            continue  # not the root
        for rank, part in zip(event.members, parts, strict=True):
            mine = own(events.of(event, rank))
            if holder != rank and len(mine) == 1 and mine[0].shape != part.shape:
                return _Difference(_SHAPE, holder, rank)
    return None


def _other_message(event: Event, events: Events) -> _Difference | None:
    sender, receiver = event.members
    tensors = (*events.of(event, sender).inputs, *events.of(event, receiver).outputs)
    if len(tensors) != 2:
        return None  # not told
    sent, taken = tensors
    if sent.dtype != taken.dtype:
        return None if _BYTES & {sent.dtype, taken.dtype} else _Difference(_DTYPE, sender, receiver)
    return _Difference(_SHAPE, sender, receiver) if sent.numel != taken.numel else None
