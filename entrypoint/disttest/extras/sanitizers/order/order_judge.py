"""Judge the order of the calls of all ranks; find missing calls and handles that are never waited for. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from disttest.extras.sanitizers.order.exchanges import Exchange, Exchanges, StreamPosition
from disttest.extras.sanitizers.order.mismatches import find_differing_groups, find_mismatches
from disttest.extras.sanitizers.order.order_findings import OrderFindingKind, at, describe, make_finding
from disttest.extras.sanitizers.order.ordering import find_order
from disttest.extras.sanitizers.order.stream import Stream
from disttest.extras.sanitizers.sanitizer import Consequence, Judgement
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


_decoder = msgspec.json.Decoder(Stream)


def judge_order(streams: Mapping[int, Stream]) -> tuple[PluginFinding, ...]:
    """Judge a test that passed on all ranks.

    Args:
        streams: rank -> its calls, for all ranks of the world.
    """
    if any(stream.doubtful for stream in streams.values()) or _are_all_alike(streams):
        return ()
    exchanges = Exchanges(streams)
    is_whole = not any(stream.beyond for stream in streams.values())
    unmatched = tuple(find_unmatched(exchanges)) if is_whole else ()
    reported = {
        call.where
        for finding in unmatched
        for order in finding.orders
        for call in order.calls
        if call.decides
    }
    return (
        *find_differing_groups(streams),
        *find_mismatches(exchanges),
        *unmatched,
        *find_order(exchanges),
        *find_never_waited(exchanges, reported),
    )


def _are_all_alike(streams: Mapping[int, Stream]) -> bool:
    """Whether all ranks made the same collectives of the whole world, as in most tests. A fast check."""
    first, *others = streams.values()
    plain = all(
        not (call.is_p2p or call.dropped) and len(call.group.ranks) == len(streams)
        for call in first.signatures
    )
    return plain and not first.beyond and all(other is first or other == first for other in others)


def limits_of(streams: Mapping[int, Stream]) -> tuple[str, ...]:
    """Describe the calls that were not compared."""
    cut = {rank: stream.beyond for rank, stream in streams.items() if stream.beyond}
    if not cut:
        return ()
    rank, more = min(cut.items())
    kept = len(streams[rank].calls)
    return (f"order was compared for the first {kept:,} calls; rank {rank} has issued {more:,} more",)


def judge_reports(reports: Mapping[int, msgspec.Raw]) -> Judgement:
    """Judge the reports of the ranks. Reports that are equal to the byte, as in most tests, are decoded once."""
    texts = {rank: bytes(report) for rank, report in sorted(reports.items())}
    read = {text: _decoder.decode(text) for text in {*texts.values()}}
    streams = {rank: read[text] for rank, text in texts.items()}
    return Judgement(judge_order(streams), limits_of(streams))
