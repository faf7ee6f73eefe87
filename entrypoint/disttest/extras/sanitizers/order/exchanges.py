"""Which calls of several ranks belong together: a collective of all its members, a send and its receive. Pure.

Calls are matched by their numbers: the third collective of a group is the same one on all its ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from disttest.extras.sanitizers.order.stream import CallSignature, Stream, StreamGroup
from disttest.observe import ANY_SOURCE


class StreamPosition(NamedTuple):
    """A call of a rank."""

    rank: int
    position: int
    """In the rank's stream."""


@dataclass(kw_only=True, eq=False)
class Exchange:
    """One collective, or one message from a rank to another."""

    group: StreamGroup
    number: int
    """From 1: among the group's collectives, or among the messages of the same two ranks with the same tag."""
    members: tuple[int, ...]
    """The ranks that take part; of a message, sender and receiver."""
    is_p2p: bool
    calls: dict[int, int] = field(default_factory=dict)
    """Rank -> index in its stream."""

    @property
    def is_complete(self) -> bool:
        """Whether all that take part have called."""
        return len(self.calls) == len(self.members)

    @property
    def absent(self) -> list[int]:
        """Those that have not."""
        return [rank for rank in self.members if rank not in self.calls]


class Exchanges:
    """The calls of a test, matched; of collectives in a group those up to the first at which ranks call other things.

    Args:
        streams: rank -> its calls.
    """

    def __init__(self, streams: Mapping[int, Stream]) -> None:
        self._streams = streams
        self.collectives: dict[StreamGroup, list[Exchange]] = {}
        """In the order of their numbers."""
        self.messages: dict[tuple[StreamGroup, int, int, int], list[Exchange]] = {}
        """By group, sender, receiver and tag."""
        self._counts: defaultdict[tuple[int, object], int] = defaultdict(int)
        self._groups: dict[tuple[str, tuple[int, ...]], StreamGroup] = {}
        blind = {(self._group(each), rank) for rank, each in self._any_source()}
        for rank, stream in streams.items():
            for index, number in enumerate(stream.calls):
                signature = stream.signatures[number]
                members = signature.group.ranks
                if rank not in members or not streams.keys() >= set(members):
                    continue  # a group of other processes than the ranks of the world
                if not signature.is_p2p:
                    self._take_collective(rank, index, signature)
                elif signature.peer not in (rank, ANY_SOURCE):
                    self._take_message(rank, index, signature, blind)
        self.parted = {group for group in self.collectives if self._cut(group)}
        """The groups in which ranks have called other things at one number: nothing after it can be compared."""

    def at(self, place: StreamPosition) -> CallSignature:
        """The call there."""
        stream = self._streams[place.rank]
        return stream.signatures[stream.calls[place.position]]

    def of(self, exchange: Exchange, rank: int) -> CallSignature:
        """What a rank called there."""
        return self.at(StreamPosition(rank, exchange.calls[rank]))

    def calls_of(self, rank: int) -> Sequence[int]:
        """The numbers of the signatures that a rank has called, in order."""
        return self._streams[rank].calls

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those whose calls are known."""
        return tuple(self._streams)

    def all(self) -> Iterator[Exchange]:
        """Each of them."""
        for exchanges in (*self.collectives.values(), *self.messages.values()):
            yield from exchanges

    def _any_source(self) -> Iterator[tuple[int, CallSignature]]:
        """The receives from whoever sends first: nobody can tell which message they have taken."""
        for rank, stream in self._streams.items():
            yield from ((rank, each) for each in stream.signatures if each.peer == ANY_SOURCE)

    def _take_collective(self, rank: int, index: int, signature: CallSignature) -> None:
        group = self._group(signature)
        exchanges = self.collectives.setdefault(group, [])
        number = self._next(rank, group)
        if number > len(exchanges):
            exchanges.append(Exchange(group=group, number=number, members=group.ranks, is_p2p=False))
        exchanges[number - 1].calls[rank] = index

    def _take_message(
        self, rank: int, index: int, signature: CallSignature, blind: set[tuple[StreamGroup, int]]
    ) -> None:
        group, peer = self._group(signature), signature.peer
        assert peer is not None
        sender, receiver = (rank, peer) if signature.is_send else (peer, rank)
        if (group, receiver) in blind:
            return
        key = (group, sender, receiver, signature.tag)
        exchanges = self.messages.setdefault(key, [])
        number = self._next(rank, key)
        if number > len(exchanges):
            exchanges.append(Exchange(group=group, number=number, members=(sender, receiver), is_p2p=True))
        exchanges[number - 1].calls[rank] = index

    def _group(self, signature: CallSignature) -> StreamGroup:
        """The group of a call, the same object on all ranks: they may describe it otherwise."""
        group = signature.group
        return self._groups.setdefault((group.name, group.ranks), group)

    def _cut(self, group: StreamGroup) -> bool:
        """Leave out what comes after the first collective at which ranks call other things; whether there is one."""
        exchanges = self.collectives[group]
        for exchange in exchanges:
            if len({self.of(exchange, rank).family for rank in exchange.calls}) > 1:
                del exchanges[exchange.number :]
                return True
        return False

    def _next(self, rank: int, where: object) -> int:
        self._counts[rank, where] += 1
        return self._counts[rank, where]
