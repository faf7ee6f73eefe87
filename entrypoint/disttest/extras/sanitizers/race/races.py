"""Races that a rank has seen in a test, as data, and their kinds."""

from __future__ import annotations

from enum import StrEnum

from disttest.extras.sanitizers.order.stream import CallSignature
from disttest.model import Frozen, short_place


class RaceKind(StrEnum):
    """Access between the issue of a call and the wait for it; the value is its word in results and reports."""

    OUTPUT_READ = "output-read"
    """A tensor that the call writes was read."""
    OUTPUT_WRITTEN = "output-written"
    """A tensor that the call writes was written."""
    INPUT_WRITTEN = "input-written"
    """A tensor that the call only reads was written."""
    STORAGE_FREED = "storage-freed"
    """Memory that the call uses was freed or moved."""


HANDED_OUT = "numpy"
"""Name of an access to memory that was handed out and is out of sight."""


class SourceLine(Frozen):
    """A line in the user's code."""

    file: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        """Format ``test_step.py:39``; empty if the access did not come from Python."""
        return short_place(self.file, self.line)


class Race(Frozen):
    """An access to a tensor between the issue of a call and the wait for it."""

    call: CallSignature
    seq: int
    """Number of the call in its group."""
    kind: RaceKind
    what: str
    """The access: ``add_``, ``tolist``, ``all_reduce SUM of float32[4]``."""
    at: SourceLine
    in_other_thread: bool = False
    """Whether another thread than that of the call made the access."""
    on_other_stream: bool = False
    """Whether the access was on another stream of the GPU than the one that waits for the call."""
    waited: SourceLine | None = None
    """Line of the wait; None if there was none in this test."""
    is_in_place: bool = False
    """Whether the call reads and writes this tensor."""


class Races(Frozen):
    """Races of one rank in one test."""

    races: tuple[Race, ...] = ()
    beyond: int = 0
    """Number of further races."""
    doubtful: bool = False
    """A call or a wait raised, which the test may expect."""
