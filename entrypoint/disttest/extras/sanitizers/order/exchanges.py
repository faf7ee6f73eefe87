"""Match the calls of several ranks: a collective of all its members, a send and its receive. Pure functions.

Calls are matched by number: the third collective of a group is the same one on all ranks.
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
    """Index in the rank's stream."""


@dataclass(kw_only=True, eq=False)
class Exchange:
    """One collective, or one message from a rank to another."""

    group: StreamGroup
    number: int
    """Number from 1, among the group's collectives, or among the messages between two ranks with the same tag."""
    members: tuple[int, ...]
    """Ranks that take part; sender and receiver of a message."""
    is_p2p: bool
    calls: dict[int, int] = field(default_factory=dict)
    """Rank -> index of the call in its stream."""

    @property
    def is_complete(self) -> bool:
        """Whether all members have called."""
        return len(self.calls) == len(self.members)

    @property
    def absent(self) -> list[int]:
        """Members that have not called."""
        return [rank for rank in self.members if rank not in self.calls]


class Exchanges:
    """Matched calls of a test. Collectives of a group end at the first one for which ranks made different calls.

    Args:
        streams: rank -> its calls.
    """

    def __init__(self, streams: Mapping[int, Stream]) -> None:
        self._streams = streams
        self.collectives: dict[StreamGroup, list[Exchange]] = {}
        """Collectives of each group, in the order of their numbers."""
        self.messages: dict[tuple[StreamGroup, int, int, int], list[Exchange]] = {}
        """Messages by group, sender, receiver and tag."""
        self._counts: defaultdict[tuple[int, object], int] = defaultdict(int)
        self._groups: dict[tuple[str, tuple[int, ...]], StreamGroup] = {}
        # Before the matching: a receive from any source may come after the messages that it makes ambiguous.
        blind = {(self._group(each), rank) for rank, each in self._any_source()}
        for rank, stream in streams.items():
            for index, number in enumerate(stream.calls):
                signature = stream.signatures[number]
                members = signature.group.ranks
                if rank not in members or not streams.keys() >= set(members):
                    continue  # not a group of the ranks of this world
                if not signature.is_p2p:
                    self._add_collective(rank, index, signature)
                # A message of a rank to itself has both ends in one stream.
                elif signature.peer not in (rank, ANY_SOURCE):
                    self._add_message(rank, index, signature, blind)
        self.diverged = {group for group in self.collectives if self._cut(group)}
        """Groups whose ranks made different calls at the same number; nothing after that can be compared."""

    def at(self, place: StreamPosition) -> CallSignature:
        """Return the call at a position."""
        stream = self._streams[place.rank]
        return stream.signatures[stream.calls[place.position]]

    def of(self, exchange: Exchange, rank: int) -> CallSignature:
        """Return the call of a rank in an exchange."""
        return self.at(StreamPosition(rank, exchange.calls[rank]))

    def calls_of(self, rank: int) -> Sequence[int]:
        """Return the signature numbers of a rank's calls, in order."""
        return self._streams[rank].calls

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks whose calls are known."""
        return tuple(self._streams)

    def all(self) -> Iterator[Exchange]:
        """Yield all exchanges."""
        for exchanges in (*self.collectives.values(), *self.messages.values()):
            yield from exchanges

    def _any_source(self) -> Iterator[tuple[int, CallSignature]]:
        """Yield the receives from any source: the message that one received is unknown."""
        for rank, stream in self._streams.items():
            yield from ((rank, each) for each in stream.signatures if each.peer == ANY_SOURCE)

    def _add_collective(self, rank: int, index: int, signature: CallSignature) -> None:
        group = self._group(signature)
        exchanges = self.collectives.setdefault(group, [])
        number = self._next(rank, group)
        # Each rank counts without gaps, so at most one exchange is missing.
        if number > len(exchanges):
            exchanges.append(Exchange(group=group, number=number, members=group.ranks, is_p2p=False))
        exchanges[number - 1].calls[rank] = index

    def _add_message(
        self, rank: int, index: int, signature: CallSignature, blind: set[tuple[StreamGroup, int]]
    ) -> None:
        group, peer = self._group(signature), signature.peer
        assert peer is not None
        sender, receiver = (rank, peer) if signature.is_send else (peer, rank)
        # A receive from any source may have taken each message to this rank, so none of them has a certain
        # partner.
        if (group, receiver) in blind:
            return
        key = (group, sender, receiver, signature.tag)
        exchanges = self.messages.setdefault(key, [])
        number = self._next(rank, key)
        if number > len(exchanges):
            exchanges.append(Exchange(group=group, number=number, members=(sender, receiver), is_p2p=True))
        exchanges[number - 1].calls[rank] = index

    def _group(self, signature: CallSignature) -> StreamGroup:
        """Return one group object for all ranks, which may describe the group differently."""
        group = signature.group
        return self._groups.setdefault((group.name, group.ranks), group)

    def _cut(self, group: StreamGroup) -> bool:
        """Cut the collectives at the first one for which ranks made different calls. Return whether there is one."""
        exchanges = self.collectives[group]
        # From the first difference on, equal numbers are not the same collective any more.
        for exchange in exchanges:
            if len({self.of(exchange, rank).family for rank in exchange.calls}) > 1:
                del exchanges[exchange.number :]
                return True
        return False

    def _next(self, rank: int, where: object) -> int:
        self._counts[rank, where] += 1
        return self._counts[rank, where]
