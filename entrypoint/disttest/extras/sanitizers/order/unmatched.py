"""Find calls that are missing on another rank, and handles that are never waited for. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from disttest.extras.sanitizers.order.exchanges import Exchange, Exchanges, StreamPosition
from disttest.extras.sanitizers.order.order_findings import make_finding
from disttest.extras.sanitizers.order.order_kinds import OrderFindingKind
from disttest.extras.sanitizers.order.order_words import at, describe
from disttest.extras.sanitizers.sanitizer import Consequence
from disttest.model import PluginFinding, rank_names

_COLLECTIVE = Consequence(
    "It goes unnoticed until a rank waits for it. The next collective of the group is paired with it, which mixes up data or "
    "hangs, and over NCCL the group never finishes.",
    "Issue it on all ranks of the group or on none; check for a condition, a loop of another length, or an early return.",
)
_MESSAGE = Consequence(
    "It goes unnoticed until a rank waits for it. The next message between the two ranks is paired with it, and over NCCL "
    "it blocks their stream.",
    "Match each send with a receive on the other rank, with the same group and tag.",
)
_NEVER_WAITED = Consequence(
    "On any backend the result may be read before it is complete, and the tensor may be written while it is in use. A "
    "failure of the call is lost.",
    "Keep the handle and call wait() on it before using the tensor again, or leave async_op out.",
)


def find_unmatched(exchanges: Exchanges) -> Iterator[PluginFinding]:
    """Yield the first incomplete collective of each group, and the first incomplete message between each two ranks."""
    for group, collectives in exchanges.collectives.items():
        first = next((exchange for exchange in collectives if not exchange.is_complete), None)
        if first is not None and group not in exchanges.diverged:
            yield _extra(first, exchanges, _COLLECTIVE)
    for messages in exchanges.messages.values():
        first = next((exchange for exchange in messages if not exchange.is_complete), None)
        if first is not None:
            yield _extra(first, exchanges, _MESSAGE)


def _extra(exchange: Exchange, exchanges: Exchanges, consequence: Consequence) -> PluginFinding:
    rank = min(exchange.calls)
    call = exchanges.of(exchange, rank)
    what = f"{describe(call)}{at(call)}"
    who = f"{rank_names(exchange.calls)} called {what}"
    absent = rank_names(exchange.absent)
    if exchange.is_p2p:
        missing = f"{absent} never {'receives' if call.is_send else 'sends'} it"
        message = (
            f"message #{exchange.number} of group {exchange.group.title} has no partner: {who}, {missing}"
        )
    else:
        message = f"not all ranks joined collective #{exchange.number} of group {exchange.group.title}: {who}, {absent} never did"
    decisive = {rank: [index] for rank, index in exchange.calls.items()}
    return make_finding(
        OrderFindingKind.EXTRA, message, consequence, exchanges, dict(sorted(decisive.items())[:2])
    )


def find_never_waited(exchanges: Exchanges, reported: Collection[str] = ()) -> Iterator[PluginFinding]:
    """Yield one finding for each line whose asynchronous call can never be waited for.

    Args:
        exchanges: calls of the test.
        reported: lines that another finding covers already.
    """
    by_line: dict[tuple[str, int], dict[int, int]] = {}
    for rank in exchanges.ranks:
        for index in range(len(exchanges.calls_of(rank))):
            call = exchanges.at(StreamPosition(rank, index))
            if call.dropped and call.where not in reported:
                by_line.setdefault((call.file, call.line), {}).setdefault(rank, index)
    for places in by_line.values():
        rank = min(places)
        call = exchanges.at(StreamPosition(rank, places[rank]))
        verb = "waits" if len(places) == 1 else "wait"
        yield make_finding(
            OrderFindingKind.NEVER_WAITED,
            f"{rank_names(places)} never {verb} for {describe(call)}{at(call)}: its handle is discarded",
            _NEVER_WAITED,
            exchanges,
            {rank: [places[rank]]},
        )
