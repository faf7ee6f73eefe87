"""The content of a rank's slot as frozen data. Corrupt content is read as something, or as a gap."""

from __future__ import annotations

import struct
from functools import lru_cache

import msgspec

from disttest.model import Frozen
from disttest.observe.records import WaitKind
from disttest.plugins.deadlock import layout
from disttest.plugins.deadlock.layout import Direction, WaitState

# The board has positions in this tuple. Rank and world run the same code, so the order is the same.
KINDS = tuple(WaitKind)


class GroupKey(Frozen, cache_hash=True):
    """Name and ranks: groups of the same name with different ranks are different groups."""

    name: str
    ranks: tuple[int, ...]


ChannelKey = tuple[GroupKey, Direction, int, int]
"""Group, direction, peer, tag."""


class Waiting(Frozen):
    """A thread that waits, or whose last event was a call issued by C++."""

    thread: int
    kind: WaitKind
    in_cpp: bool
    """Whether it may have left C++ since, which only its stack can show."""
    op: str
    """The operation; empty if it waits for no call."""
    group: GroupKey | None
    where: str
    keys: str
    """Keys of a store; ranks of a group under construction; place of the call in the queue of a GPU."""
    peer: int | None
    root: int | None
    tag: int
    seq: int
    since_s: float
    """Time on the monotonic clock, as below."""
    name: str
    """Name of a group under construction."""
    until_s: float
    """Time at which it times out; a past time if a process other than a rank may end it."""

    @property
    def direction(self) -> Direction:
        """Direction of a point-to-point call."""
        return Direction.SEND if self.op.startswith("send") else Direction.RECEIVE


class IssuedCollective(Frozen):
    """The call at a number of a group."""

    op: str
    root: int | None
    tensors: str
    """The inputs: ``float32[4, 3]``; empty if there are none, or no space was left."""
    where: str
    behind: tuple[GroupKey, int] | None = None
    """Group and number of the call that must complete first, for a call in the queue of a GPU."""


class GroupState(Frozen):
    """A group as one of its ranks knows it."""

    description: str
    issued: int
    """Number of the last collective."""
    calls: dict[int, IssuedCollective]
    """The last ones, by number."""


class Counts(Frozen):
    """Counts of the point-to-point calls of one channel."""

    issued: int
    done: int
    """Lower bound of the calls that are complete."""
    tensors: str = ""
    """Tensors of the last call; empty if no space was left."""
    where: str = ""
    """Place of the last call."""


class Making(Frozen):
    """A group whose creation a rank has begun."""

    ranks: str
    """Its members, in the format of ``layout.write_ranks``."""
    where: str


class Snapshot(Frozen):
    """A rank at one moment."""

    is_observed: bool = False
    has_gap: bool = False
    """Whether data is missing here."""
    expects: bool = False
    """Whether the test expects a deadlock now."""
    expectation: str = ""
    """Regular expression for its finding."""
    rank: int = -1
    """Rank in the default group; -1 before it has one."""
    waits: tuple[Waiting, ...] = ()
    makings: dict[str, Making] = msgspec.field(default_factory=dict)
    """The last groups whose creation has begun, by name."""
    groups: dict[GroupKey, GroupState] = msgspec.field(default_factory=dict)
    channels: dict[ChannelKey, Counts] = msgspec.field(default_factory=dict)


def read_slot(slot: bytes) -> Snapshot:
    """Read a slot of :data:`layout.SLOT` bytes; an invalid one has a gap."""
    try:
        return _Reader(slot).snapshot()
    # The rank may write at this moment, or may have overwritten its memory before it crashed.
    except (ValueError, struct.error, IndexError):
        return Snapshot(is_observed=bool(slot and slot[0]), has_gap=True)


def groups_in_the_making(slot: bytes) -> list[tuple[str, int]]:
    """Return the groups that a rank is creating now; none if its slot is invalid.

    Returns:
        For each its members, in the format of ``layout.write_ranks``, and its number among the groups of those
            members in this test, from 1.
    """
    try:
        waits = filter(None, map(_Reader(slot).waiting, layout.WAITS.places()))
        return [(wait.keys, wait.seq) for wait in waits if wait.kind is WaitKind.GROUP and wait.keys]
    except (ValueError, struct.error, IndexError):
        return []


# Together with the comparison of whole calls in `_open_uneven`, this brought the search from 0.84 to 0.07 s
# of CPU time for 256 ranks.
@lru_cache(maxsize=4096)
def _group_key(name: str, ranks: str) -> GroupKey:
    """Make one object for all ranks of a group: each pair of them is compared, and a hash takes as long as its ranks."""
    return GroupKey(name=name, ranks=layout.read_ranks(ranks))


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
        # The text appears in messages, and a corrupt slot must not send control characters to a terminal.
        return "".join(c if c.isprintable() else "?" for c in text.decode("utf-8", "replace"))

    def _name_groups(self) -> None:
        """Read the names of groups first, because rows of calls refer to them."""
        for place in layout.GROUPS.places():
            name, _, ranks, _ = layout.GROUP.unpack_from(self._slot, place)
            if name:
                self._keys[place] = _group_key(self._text(name), self._text(ranks))

    def _group(self, place: int) -> tuple[GroupKey, GroupState]:
        _, description, _, issued = layout.GROUP.unpack_from(self._slot, place)
        # Only as many as the ring has, however large the count in a corrupt slot is.
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
