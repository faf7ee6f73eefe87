"""Calls that are missing on another rank, and handles that nobody keeps. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from disttest.model import SanitizerFinding
from disttest.sanitizers.order.exchanges import Event, Events, Place
from disttest.sanitizers.order.order_findings import Advice, make_finding
from disttest.sanitizers.order.order_kinds import Kind
from disttest.sanitizers.order.order_words import at, describe
from disttest.sanitizers.words import names

_COLLECTIVE = Advice(
    "It goes unnoticed while nobody waits for it; the next collective of the group is paired with it, so that data are mixed "
    "up or ranks hang, and over NCCL the group is never finished.",
    "Issue it on all ranks of the group, or on none: look for a condition, a loop of another length, or an early return.",
)
_MESSAGE = Advice(
    "It goes unnoticed while nobody waits for it; the next message between the two ranks is paired with it, and over NCCL "
    "the stream of the two ranks is blocked.",
    "Give each send a receive on the other rank, with the same group and tag.",
)
_NEVER_WAITED = Advice(
    "Whether its result is there when it is read, and its tensor is still in use when it is written, is luck on every "
    "backend; if it fails, nobody hears of it.",
    "Keep the handle and call wait() on it before the tensor is used again, or leave async_op out.",
)


def find_extras(events: Events) -> Iterator[SanitizerFinding]:
    """Of each group the first collective, and of each two ranks the first message, that not all have called."""
    for group, collectives in events.collectives.items():
        first = next((event for event in collectives if not event.is_complete), None)
        if first is not None and group not in events.parted:
            yield _extra(first, events, _COLLECTIVE)
    for messages in events.messages.values():
        first = next((event for event in messages if not event.is_complete), None)
        if first is not None:
            yield _extra(first, events, _MESSAGE)


def _extra(event: Event, events: Events, advice: Advice) -> SanitizerFinding:
    rank = min(event.calls)
    call = events.of(event, rank)
    what = f"{describe(call)}{at(call)}"
    who = f"{names(event.calls)} called {what}"
    absent = names(event.absent)
    if event.is_p2p:
        missing = f"{absent} never {'receives' if call.is_send else 'sends'} it"
        message = f"message #{event.number} of group {event.group.title} has no partner: {who}, {missing}"
    else:
        message = f"not all ranks joined collective #{event.number} of group {event.group.title}: {who}, {absent} never did"
    decisive = {rank: [index] for rank, index in event.calls.items()}
    return make_finding(Kind.EXTRA, message, advice, events, dict(sorted(decisive.items())[:2]))


def find_never_waited(events: Events, told: Collection[str] = ()) -> Iterator[SanitizerFinding]:
    """One finding for each line whose asynchronous call nobody can wait for.

    Args:
        events: of the test.
        told: lines of which another finding tells already.
    """
    by_line: dict[tuple[str, int], dict[int, int]] = {}
    for rank in events.ranks:
        for index in range(len(events.calls_of(rank))):
            call = events.at(Place(rank, index))
            if call.dropped and call.where not in told:
                by_line.setdefault((call.file, call.line), {}).setdefault(rank, index)
    for places in by_line.values():
        rank = min(places)
        call = events.at(Place(rank, places[rank]))
        verb = "waits" if len(places) == 1 else "wait"
        yield make_finding(
            Kind.NEVER_WAITED,
            f"{names(places)} never {verb} for {describe(call)}{at(call)}: its handle is thrown away",
            _NEVER_WAITED,
            events,
            {rank: [places[rank]]},
        )
