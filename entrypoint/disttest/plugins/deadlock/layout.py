"""How a rank's slot of the board is laid out, for the rank that writes it and the world that reads it.

A header, four tables of fixed rows, and the texts that rows name by their place. No table is longer than the slot, so
that one full of anything is read in bounded time.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

SLOT = 13568
"""Bytes for each rank."""

OBSERVED_AT = 0
"""A byte: the rank writes here."""
GAP_AT = 1
"""A byte: something did not fit, so what stands here is not all."""
EXPECTED_AT = 2
"""A byte: the test expects a deadlock now."""
EXPECTATION_AT = 4
"""The text that such a deadlock has to match."""
RANK_AT = 8
RANK = struct.Struct("<i")
"""Its rank in the default group, counted from 1; 0 before it has one."""


class Table(NamedTuple):
    """Rows of one form."""

    start: int
    size: int
    """Bytes of a row."""
    rows: int

    @property
    def end(self) -> int:
        """Where the next one may begin."""
        return self.start + self.size * self.rows

    def places(self) -> range:
        """Where its rows begin."""
        return range(self.start, self.end, self.size)


NO_RANK = -2
"""In place of a root where there is none, or of a peer."""

WAIT = struct.Struct("<BBHHHHHiiqqQdd")
"""State, kind, place, keys, operation, group, name, peer, root, tag, number, thread, since when, until when."""
WAITS = Table(16, WAIT.size, 16)

GROUP = struct.Struct("<HHHxxI")
"""Name, description, ranks, number of the last collective; behind it what the last ones were."""
LAST = struct.Struct("<I")
LAST_AT = struct.calcsize("<HHHxx")
SIGNATURE = struct.Struct("<HHHHiI")
"""Operation, tensors, place, group that it is behind, root, number that it is behind."""
RING = 8
GROUPS = Table(WAITS.end, GROUP.size + RING * SIGNATURE.size, 20)

CHANNEL = struct.Struct("<HBxiqHHII")
"""Group, direction, peer, tag; place and tensors of the last call; how many were issued, how many are known to be done."""
LAST_CALL = struct.Struct("<HH")
COUNTS = struct.Struct("<II")
COUNTS_AT = CHANNEL.size - COUNTS.size
LAST_CALL_AT = COUNTS_AT - LAST_CALL.size
CHANNELS = Table(GROUPS.end, CHANNEL.size, 60)

MAKING = struct.Struct("<HHH")
"""Name and ranks of a group that the rank has begun to make, place."""
MAKINGS = Table(CHANNELS.end, MAKING.size, 16)
"""The last ones, the oldest of them overwritten."""

TEXTS = MAKINGS.end
"""Texts: two bytes of length, then UTF-8; 0 names the empty one."""
LAST_TENSORS = TEXTS + 4096
"""Texts of tensors end here at the latest, however many shapes a test has: the rest is for what proofs are made of."""
LENGTH = struct.Struct("<H")
LONGEST_TEXT = 240


class WaitState(IntEnum):
    """What a row of the waits says of its thread."""

    FREE = 0
    WAITING = 1
    IN_CPP = 2
    """C++ has issued a call there, and nothing was heard of the thread since."""


class Direction(IntEnum):
    """Of point-to-point calls."""

    SEND = 1
    RECEIVE = 2


def ring_place(group: int, seq: int) -> int:
    """Where the signature of a collective of a group stands.

    Args:
        group: place of its row.
        seq: number of the collective.
    """
    return group + GROUP.size + (seq % RING) * SIGNATURE.size


def write_ranks(ranks: tuple[int, ...]) -> str:
    """``0-3,7``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


_MOST_RANKS = 100_000


def read_ranks(text: str) -> tuple[int, ...]:
    """What :func:`write_ranks` has written.

    Raises:
        ValueError: it has not.
    """
    ranks: list[int] = []
    for run in text.split(","):
        numbers = [int(number) for number in run.split("-")]
        first, last = numbers[0], numbers[-1]
        if last - first > _MOST_RANKS:
            raise ValueError(f"a group of {last - first} ranks")
        ranks += range(first, last + 1)
    return tuple(ranks)
