"""What a rank's slot says, as frozen data; whatever a broken rank has written there is read as something, or as a gap."""

from __future__ import annotations

import struct

import msgspec

from disttest.model import Frozen
from disttest.observe.records import WaitKind
from disttest.plugins.deadlock import layout
from disttest.plugins.deadlock.layout import Direction, WaitState

KINDS = tuple(WaitKind)
GroupKey = tuple[str, tuple[int, ...]]
"""Name and ranks: two groups of one name that have other ranks are two groups."""
ChannelKey = tuple[GroupKey, Direction, int, int]
"""Group, direction, peer, tag."""


class Waiting(Frozen):
    """A thread that waits, or that was last heard of when C++ issued a call in it."""

    thread: int
    kind: WaitKind
    in_cpp: bool
    """It may have left C++ since: only its stack can tell."""
    op: str
    """Empty: it waits for no call."""
    group: GroupKey | None
    where: str
    keys: str
    """Of a store; of a group that is being made its ranks; of a call in the queue of a GPU where it was issued."""
    peer: int | None
    root: int | None
    tag: int
    seq: int
    since_s: float
    """On the monotonic clock, as below."""
    name: str
    """Of a group that is being made."""
    until_s: float
    """When it stops waiting by itself; a past moment if a process that is not a rank may end it."""

    @property
    def direction(self) -> Direction:
        """Of a point-to-point call."""
        return Direction.SEND if self.op.startswith("send") else Direction.RECEIVE


class IssuedCollective(Frozen):
    """What was called at a number of a group."""

    op: str
    root: int | None
    tensors: str
    """The inputs: ``float32[4, 3]``; empty where there are none, or no space was left."""
    where: str
    behind: tuple[GroupKey, int] | None = None
    """Group and number of what has to be over first, of a call in the queue of a GPU."""


class GroupState(Frozen):
    """A group as one of its ranks knows it."""

    description: str
    issued: int
    """Number of the last collective."""
    calls: dict[int, IssuedCollective]
    """The last ones, by number."""


class Counts(Frozen):
    """Of the point-to-point calls of one channel."""

    issued: int
    done: int
    """So many at least are known to be done."""
    tensors: str = ""
    """Of the last call; empty where no space was left."""
    where: str = ""
    """Of the last call."""


class Making(Frozen):
    """A group that a rank has begun to make."""

    ranks: str
    """Its members, as ``layout.write_ranks`` writes them."""
    where: str


class Snapshot(Frozen):
    """A rank, at one moment."""

    is_observed: bool = False
    has_gap: bool = False
    """Something is missing here."""
    expects: bool = False
    """The test expects a deadlock now."""
    expectation: str = ""
    """A regular expression for its finding."""
    rank: int = -1
    """In the default group; -1 before it has one."""
    waits: tuple[Waiting, ...] = ()
    makings: dict[str, Making] = msgspec.field(default_factory=dict)
    """The last groups that it has begun to make, by name."""
    groups: dict[GroupKey, GroupState] = msgspec.field(default_factory=dict)
    channels: dict[ChannelKey, Counts] = msgspec.field(default_factory=dict)


def read_slot(slot: bytes) -> Snapshot:
    """Read a slot of :data:`layout.SLOT` bytes; one that makes no sense has a gap."""
    try:
        return _Reader(slot).snapshot()
    except (ValueError, struct.error, IndexError):
        return Snapshot(is_observed=bool(slot and slot[0]), has_gap=True)


def groups_in_the_making(slot: bytes) -> list[tuple[str, int]]:
    """The groups that a rank is making now; none where its slot makes no sense.

    Returns:
        Of each its members, as ``layout.write_ranks`` writes them, and which group of those members it is in this test,
        from 1.
    """
    try:
        waits = filter(None, map(_Reader(slot).waiting, layout.WAITS.places()))
        return [(wait.keys, wait.seq) for wait in waits if wait.kind is WaitKind.GROUP and wait.keys]
    except (ValueError, struct.error, IndexError):
        return []


class _Reader:
    def __init__(self, slot: bytes) -> None:
        self._slot = slot
        self._keys: dict[int, GroupKey] = {}

    def snapshot(self) -> Snapshot:
        slot = self._slot
        self._name_groups()
        groups = dict(map(self._group, self._keys))
        return Snapshot(
            is_observed=bool(slot[layout.OBSERVED_AT]),
            has_gap=bool(slot[layout.GAP_AT]),
            expects=bool(slot[layout.EXPECTED_AT]),
            expectation=self._text(layout.LENGTH.unpack_from(slot, layout.EXPECTATION_AT)[0]),
            rank=layout.RANK.unpack_from(slot, layout.RANK_AT)[0] - 1,
            waits=tuple(filter(None, map(self.waiting, layout.WAITS.places()))),
            makings=dict(filter(None, map(self._making, layout.MAKINGS.places()))),
            groups=groups,
            channels=dict(filter(None, map(self._channel, layout.CHANNELS.places()))),
        )

    def _text(self, place: int) -> str:
        if not place:
            return ""
        (length,) = layout.LENGTH.unpack_from(self._slot, place)
        text = self._slot[place + layout.LENGTH.size :][: min(length, layout.LONGEST_TEXT)]
        return "".join(c if c.isprintable() else "?" for c in text.decode("utf-8", "replace"))

    def _name_groups(self) -> None:
        """First of all: calls name groups, too."""
        for place in layout.GROUPS.places():
            name, _, ranks, _ = layout.GROUP.unpack_from(self._slot, place)
            if name:
                self._keys[place] = (self._text(name), layout.read_ranks(self._text(ranks)))

    def _group(self, place: int) -> tuple[GroupKey, GroupState]:
        _, description, _, issued = layout.GROUP.unpack_from(self._slot, place)
        numbers = range(max(1, issued - layout.RING + 1), issued + 1)
        calls = {seq: self._signature(layout.ring_place(place, seq)) for seq in numbers}
        return self._keys[place], GroupState(description=self._text(description), issued=issued, calls=calls)

    def _signature(self, place: int) -> IssuedCollective:
        op, tensors, where, group, root, seq = layout.SIGNATURE.unpack_from(self._slot, place)
        behind = self._keys.get(group)
        return IssuedCollective(
            op=self._text(op),
            root=_rank(root),
            tensors=self._text(tensors),
            where=self._text(where),
            behind=(behind, seq) if behind is not None else None,
        )

    def waiting(self, place: int) -> Waiting | None:
        state, kind, where, keys, op, group, name, peer, root, tag, seq, thread, since_s, until_s = (
            layout.WAIT.unpack_from(self._slot, place)
        )
        if state == WaitState.FREE:
            return None
        return Waiting(
            thread=thread,
            kind=KINDS[kind],
            in_cpp=WaitState(state) is WaitState.IN_CPP,
            op=self._text(op),
            group=self._keys.get(group),
            where=self._text(where),
            keys=self._text(keys),
            peer=_rank(peer),
            root=_rank(root),
            tag=tag,
            seq=seq,
            since_s=since_s,
            name=self._text(name),
            until_s=until_s,
        )

    def _making(self, place: int) -> tuple[str, Making] | None:
        name, ranks, where = layout.MAKING.unpack_from(self._slot, place)
        return (self._text(name), Making(ranks=self._text(ranks), where=self._text(where))) if name else None

    def _channel(self, place: int) -> tuple[ChannelKey, Counts] | None:
        group, direction, peer, tag, where, tensors, issued, done = layout.CHANNEL.unpack_from(
            self._slot, place
        )
        if not direction or group not in self._keys:
            return None
        return (self._keys[group], Direction(direction), peer, tag), Counts(
            issued=issued, done=done, tensors=self._text(tensors), where=self._text(where)
        )


def _rank(number: int) -> int | None:
    return None if number == layout.NO_RANK else number
