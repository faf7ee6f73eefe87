"""Judge the order of the calls of all ranks; find missing calls and handles that are never waited for. Pure functions.

Orders in which ranks would wait for each other if each did one thing after the other are found as follows. Each thread
of each rank is a queue of its calls. A call is done when all members have it at the head of their queues; the calls of
one batch are at the head together. Gloo does more at a time: it runs asynchronous calls of different groups, and of
different pairs of ranks, in parallel. NCCL does not: making a communicator at its first use blocks until all members
have come, and kernels of one GPU may run one after another. Queues that block in a test that passed are therefore a
deadlock elsewhere. Linux's lockdep checks the order of locks in the same way.

One pass over the queues finds two groups in opposite order, cycles of three and crossing messages, in time linear in
the calls, and yields the cycle as the proof.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from disttest.extras.sanitizers.order.exchanges import Exchange, Exchanges, StreamPosition
from disttest.extras.sanitizers.order.mismatches import find_differing_groups, find_mismatches
from disttest.extras.sanitizers.order.order_findings import (
    OrderFindingKind,
    at,
    describe,
    make_finding,
    title,
)
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
        # In a diverged group later collectives are cut off, so none of them is known to be missing.
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
    # Two ranks show the call. All that issued it are in the message.
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
                # The first call of a line in each rank, since loops repeat it.
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
    # The cheap answers first: almost all tests end here.
    if any(stream.doubtful for stream in streams.values()) or _are_all_alike(streams):
        return ()
    exchanges = Exchanges(streams)
    # A stream that was cut ends at another call in each rank. A missing call may be behind the cut.
    is_whole = not any(stream.beyond for stream in streams.values())
    unmatched = tuple(find_unmatched(exchanges)) if is_whole else ()
    # The handle of a call without partners is often discarded as well. One finding for a line is enough.
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
    # Streams from equal bytes are one object, so `is` spares most comparisons.
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
    # 256 ranks with equal calls cost one decoding.
    read = {text: _decoder.decode(text) for text in {*texts.values()}}
    streams = {rank: read[text] for rank, text in texts.items()}
    return Judgement(judge_order(streams), limits_of(streams))


_MOST_STOPS = 1_000
"""Blocked queues that are released to search for more cycles."""

# Collectives of groups that overlap on GPUs need one order on all ranks: https://github.com/pytorch/pytorch/pull/131895
# and https://github.com/NVIDIA/nccl/issues/195
_ADVICE = {
    OrderFindingKind.GROUP_ORDER: Consequence(
        "gloo passes, since it runs calls of different groups in parallel. Over NCCL the GPU of each rank may be busy with its "
        "first call, which waits for the other ranks: a deadlock that depends on the load.",
        "Issue collectives of groups that share ranks in the same order on all of them.",
    ),
    # NCCL ignores tags: https://github.com/pytorch/pytorch/issues/125079
    OrderFindingKind.P2P_ORDER: Consequence(
        "gloo passes, since it separates calls by group and tag. NCCL ignores tags and pairs the messages of two ranks in the "
        "order of issue: data end up in the wrong tensors, or the ranks deadlock.",
        "Issue sends, receives and collectives in the same order on both ranks, or use one batch_isend_irecv for the messages.",
    ),
    # The first use of a communicator blocks until the peer uses it, too:
    # https://github.com/pytorch/pytorch/issues/108378
    OrderFindingKind.P2P_CYCLE: Consequence(
        "gloo passes, since the calls are asynchronous. NCCL makes the communicator of two ranks at the first call and runs "
        "their messages one after another: each waits for the other, a deadlock.",
        "Put matching sends and receives into one batch_isend_irecv, or let one side send first and the other receive first.",
    ),
}


@dataclass(kw_only=True, eq=False)
class _Queue:
    """Calls of one thread."""

    rank: int
    steps: list[list[Exchange]] = field(default_factory=list)
    """Steps in order; the calls of one batch are one step."""
    head: int = 0

    def pending(self, done: set[Exchange]) -> list[Exchange]:
        """Return the exchanges that the queue waits for; empty once all are done."""
        while self.head < len(self.steps):
            if rest := [exchange for exchange in self.steps[self.head] if exchange not in done]:
                return rest
            self.head += 1
        return []


_Link = tuple[_Queue, Exchange]
"""A queue, and the exchange that it waits for."""


def find_order(exchanges: Exchanges) -> Iterator[PluginFinding]:
    """Yield one finding for each cycle of lines whose calls wait for each other."""
    queues, homes = _queues(exchanges)
    done: set[Exchange] = set()
    reported: set[frozenset[str]] = set()
    moved = list(queues)
    for _ in range(_MOST_STOPS):
        # Run until nothing moves. A queue that is not at its end then waits for another queue, and the waits
        # form a cycle.
        _run(moved, homes, done)
        stuck = next((queue for queue in queues if queue.pending(done)), None)
        if stuck is None:
            return
        cycle = _cycle(stuck, homes, done)
        lines = frozenset(exchanges.of(exchange, queue.rank).where for queue, exchange in cycle)
        if lines not in reported:
            reported.add(lines)
            yield _finding(cycle, exchanges)
        # Complete one exchange of the cycle by force, to find cycles behind it. Only its queues can have
        # moved.
        _, helped = cycle[0]
        done.add(helped)
        moved = homes[helped]


def _queues(exchanges: Exchanges) -> tuple[list[_Queue], dict[Exchange, list[_Queue]]]:
    """Return the queues, and the queues of each exchange."""
    at_place = {
        StreamPosition(rank, i): exchange
        for exchange in exchanges.all()
        # An incomplete exchange would block its queues for ever. find_unmatched reports it.
        if exchange.is_complete
        for rank, i in exchange.calls.items()
    }
    queues: dict[tuple[int, int], _Queue] = {}
    homes: dict[Exchange, list[_Queue]] = defaultdict(list)
    in_batch: dict[tuple[int, int], bool] = {}
    for place in sorted(at_place):
        call, exchange = exchanges.at(place), at_place[place]
        key = (place.rank, call.thread)
        queue = queues.setdefault(key, _Queue(rank=place.rank))
        # Two batches in a row are one step: signatures do not number batches. That can hide a cycle, but
        # never makes one.
        if call.batched and in_batch.get(key):
            queue.steps[-1].append(exchange)
        else:
            queue.steps.append([exchange])
        in_batch[key] = call.batched
        homes[exchange].append(queue)
    return list(queues.values()), homes


def _run(moved: list[_Queue], homes: dict[Exchange, list[_Queue]], done: set[Exchange]) -> None:
    """Complete all possible exchanges, beginning with the queues that have moved."""
    waiting = list(moved)
    while waiting:
        for exchange in waiting.pop().pending(done):
            if all(exchange in home.pending(done) for home in homes[exchange]):
                done.add(exchange)
                waiting += homes[exchange]


def _cycle(start: _Queue, homes: dict[Exchange, list[_Queue]], done: set[Exchange]) -> list[_Link]:
    """Return queues each of which waits for the next one, and the last for the first."""
    path: list[_Link] = []
    queue = start
    while all(queue is not seen for seen, _ in path):
        # Follow the waits: this exchange is not at the head of some other queue. There are finitely many
        # queues, so the walk meets one of them again.
        exchange = queue.pending(done)[0]
        path.append((queue, exchange))
        queue = next(home for home in homes[exchange] if exchange not in home.pending(done))
    # The way into the cycle is no part of it.
    first = next(place for place, (seen, _) in enumerate(path) if seen is queue)
    return path[first:]


_TITLES = {
    OrderFindingKind.GROUP_ORDER: "ranks use groups in orders that wait for each other",
    OrderFindingKind.P2P_ORDER: "ranks issue messages in orders that wait for each other",
    OrderFindingKind.P2P_CYCLE: "ranks begin with messages that wait for each other",
}


def _finding(cycle: list[_Link], exchanges: Exchanges) -> PluginFinding:
    decisive: dict[int, list[int]] = defaultdict(list)
    parts = []
    later = [exchange for _, exchange in (cycle[-1], *cycle[:-1])]
    for (queue, exchange), after in sorted(zip(cycle, later, strict=True), key=lambda link: link[0][0].rank):
        rank = queue.rank
        decisive[rank] += [exchange.calls[rank], after.calls[rank]]
        first, second = (
            f"{title(call)} #{each.number} of group {each.group.title}{at(call)}"
            for each in (exchange, after)
            for call in (exchanges.of(each, rank),)
        )
        parts.append(f"rank {rank} calls {first}, then {second}")
    kind = _kind([exchange for _, exchange in cycle])
    return make_finding(kind, f"{_TITLES[kind]}: {'; '.join(parts)}", _ADVICE[kind], exchanges, decisive)


def _kind(cycle: list[Exchange]) -> OrderFindingKind:
    if not any(exchange.is_p2p for exchange in cycle):
        return OrderFindingKind.GROUP_ORDER
    # Messages of one pair in one direction can differ in their tags only.
    in_one_direction = len({(exchange.group, exchange.members) for exchange in cycle}) == 1
    is_cycle = all(exchange.is_p2p for exchange in cycle) and not in_one_direction
    return OrderFindingKind.P2P_CYCLE if is_cycle else OrderFindingKind.P2P_ORDER
