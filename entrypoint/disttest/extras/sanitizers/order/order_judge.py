"""Judge the order of the calls of all ranks. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from disttest.extras.sanitizers.order.differing_groups import find_differing_groups
from disttest.extras.sanitizers.order.exchanges import Exchanges
from disttest.extras.sanitizers.order.mismatches import find_mismatches
from disttest.extras.sanitizers.order.ordering import find_order
from disttest.extras.sanitizers.order.stream import Stream
from disttest.extras.sanitizers.order.unmatched import find_never_waited, find_unmatched
from disttest.extras.sanitizers.sanitizer import Judgement
from disttest.model import PluginFinding

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
