"""Layout of a rank's slot of the board, for the rank that writes it and the world that reads it.

It has a header, four tables of fixed rows, and texts that rows refer to by position. No table exceeds the slot, so
even corrupt content is read in bounded time.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from disttest.model import consecutive

# The tables end at byte 5,552; the rest holds texts. Rows refer to texts by 16 bits, so a slot must stay
# below 64 KiB.
SLOT = 13568
"""Bytes per rank."""

OBSERVED_AT = 0
"""A byte: the rank writes here."""
GAP_AT = 1
"""A byte: some data did not fit, so the slot is incomplete."""
EXPECTED_AT = 2
"""A byte: the test expects a deadlock now."""
EXPECTATION_AT = 4
"""Position of the text that such a deadlock must match."""
RANK_AT = 8
# Counted from 1, so that a slot of zeros is a valid slot of a rank without a group.
RANK = struct.Struct("<i")
"""Its rank in the default group, counted from 1; 0 before it has one."""


class Table(NamedTuple):
    """Rows of one format."""

    start: int
    size: int
    """Bytes of a row."""
    rows: int

    @property
    def end(self) -> int:
        """Position behind the table."""
        return self.start + self.size * self.rows

    def places(self) -> range:
        """Return the positions of its rows."""
        return range(self.start, self.end, self.size)


# Not -1: torch uses that for "any source".
NO_RANK = -2
"""Stands in for a missing root or peer."""

WAIT = struct.Struct("<BBHHHHHiiqqQdd")
"""State, kind, place, keys, operation, group, name, peer, root, tag, number, thread, start, end."""
WAITS = Table(16, WAIT.size, 16)

GROUP = struct.Struct("<HHHxxI")
"""Name, description, ranks, number of the last collective; the signatures of the last ones follow."""
LAST = struct.Struct("<I")
# The positions of single fields: most calls change only these bytes of a row.
LAST_AT = struct.calcsize("<HHHxx")
SIGNATURE = struct.Struct("<HHHHiI")
"""Operation, tensors, place, group of the call before it in the queue, root, number of that call."""
RING = 8
GROUPS = Table(WAITS.end, GROUP.size + RING * SIGNATURE.size, 20)

CHANNEL = struct.Struct("<HBxiqHHII")
"""Group, direction, peer, tag; place and tensors of the last call; counts of issued and of finished calls."""
LAST_CALL = struct.Struct("<HH")
COUNTS = struct.Struct("<II")
COUNTS_AT = CHANNEL.size - COUNTS.size
LAST_CALL_AT = COUNTS_AT - LAST_CALL.size
CHANNELS = Table(GROUPS.end, CHANNEL.size, 60)

MAKING = struct.Struct("<HHH")
"""Name and ranks of a group whose creation has begun, place."""
MAKINGS = Table(CHANNELS.end, MAKING.size, 16)
"""The last ones; the oldest is overwritten."""

TEXTS = MAKINGS.end
"""Texts: two bytes of length, then UTF-8; 0 refers to the empty text."""
# The rest is reserved for texts that proofs need.
LAST_TENSORS = TEXTS + 4096
"""Greatest position for texts of tensors, however many shapes a test has."""
LENGTH = struct.Struct("<H")
LONGEST_TEXT = 240


class WaitState(IntEnum):
    """The state of a thread in a row of waits."""

    FREE = 0
    WAITING = 1
    IN_CPP = 2
    """C++ has issued a call in the thread, and no event of the thread followed."""


class Direction(IntEnum):
    """Direction of point-to-point calls."""

    SEND = 1
    RECEIVE = 2


def ring_place(group: int, seq: int) -> int:
    """Return the position of the signature of a group's collective.

    Args:
        group: position of the group's row.
        seq: number of the collective.
    """
    return group + GROUP.size + (seq % RING) * SIGNATURE.size


def write_ranks(ranks: tuple[int, ...]) -> str:
    """Write ranks as ``0-3,7``."""
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in consecutive(ranks))


# A broken rank may write "0-99999999999", which must not fill the memory of its world.
_MOST_RANKS = 100_000


def read_ranks(text: str) -> tuple[int, ...]:
    """Parse the output of :func:`write_ranks`.

    Raises:
        ValueError: it is not valid.
    """
    ranks: list[int] = []
    for run in text.split(","):
        numbers = [int(number) for number in run.split("-")]
        first, last = numbers[0], numbers[-1]
        if last - first > _MOST_RANKS:
            raise ValueError(f"a group of {last - first} ranks")
        ranks += range(first, last + 1)
    return tuple(ranks)
