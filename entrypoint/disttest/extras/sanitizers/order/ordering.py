"""Find orders in which ranks would wait for each other if each did one thing after the other. Pure functions.

Each thread of each rank is a queue of its calls. A call is done when all members have it at the head of their queues;
the calls of one batch are at the head together. Gloo does more at a time: it runs asynchronous calls of different
groups, and of different pairs of ranks, in parallel. NCCL does not: making a communicator at its first use blocks until
all members have come, and kernels of one GPU may run one after another. Queues that block in a test that passed are
therefore a deadlock elsewhere. Linux's lockdep checks the order of locks in the same way.

One pass over the queues finds two groups in opposite order, cycles of three and crossing messages, in time linear in
the calls, and yields the cycle as the proof.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from disttest.extras.sanitizers.order.exchanges import Exchange, Exchanges, StreamPosition
from disttest.extras.sanitizers.order.order_findings import OrderFindingKind, at, make_finding, title
from disttest.extras.sanitizers.sanitizer import Consequence
from disttest.model import PluginFinding

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
        _run(moved, homes, done)
        stuck = next((queue for queue in queues if queue.pending(done)), None)
        if stuck is None:
            return
        cycle = _cycle(stuck, homes, done)
        lines = frozenset(exchanges.of(exchange, queue.rank).where for queue, exchange in cycle)
        if lines not in reported:
            reported.add(lines)
            yield _finding(cycle, exchanges)
        _, helped = cycle[0]
        done.add(helped)
        moved = homes[helped]


def _queues(exchanges: Exchanges) -> tuple[list[_Queue], dict[Exchange, list[_Queue]]]:
    """Return the queues, and the queues of each exchange."""
    at_place = {
        StreamPosition(rank, i): exchange
        for exchange in exchanges.all()
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
        exchange = queue.pending(done)[0]
        path.append((queue, exchange))
        queue = next(home for home in homes[exchange] if exchange not in home.pending(done))
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
    in_one_direction = len({(exchange.group, exchange.members) for exchange in cycle}) == 1
    is_cycle = all(exchange.is_p2p for exchange in cycle) and not in_one_direction
    return OrderFindingKind.P2P_CYCLE if is_cycle else OrderFindingKind.P2P_ORDER
