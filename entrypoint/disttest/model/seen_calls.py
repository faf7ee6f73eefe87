"""Calls of ranks as plugins have seen them, and their findings."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from disttest.model.frozen import Frozen

FROM_ROOT = frozenset({"broadcast", "scatter"})
TO_ROOT = frozenset({"reduce", "gather", "gather_into_tensor"})
"""Names of the collectives in which one rank sends to all others, and of those in which one takes from them."""


class WindowEdge(StrEnum):
    """Where something stands in the time for which a call is pending."""

    OPENS = "opens"
    """The call is issued."""
    INSIDE = "inside"
    CLOSES = "closes"
    """Somebody has waited for it."""


def short_place(file: str, line: int) -> str:
    """``test_step.py:39``; empty where there is no file."""
    return f"{file.rpartition('/')[2]}:{line}" if file else ""


class SeenCall(Frozen):
    """A call to `torch.distributed` as a plugin has seen it, or what was done next to one."""

    what: str
    """``all_reduce SUM of float32[4], #3 of group default``."""
    file: str = ""
    """Of the line in the user's code; absolute, as it was seen there, and empty where nobody in Python has called."""
    line: int = 0
    decides: bool = False
    """The finding is about this one; the others stand around it."""
    window: WindowEdge | None = None
    """Of a race: where it stands in the time for which a call is pending."""
    same: bool | None = None
    """Whether all ranks had the same numbers there; None where that was not compared."""

    @property
    def where(self) -> str:
        """``test_step.py:39``, or nothing."""
        return short_place(self.file, self.line)


class RankCalls(Frozen):
    """Calls of one rank, in the order in which it has issued them."""

    rank: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    calls: tuple[SeenCall, ...]


class PluginFinding(Frozen):
    """A finding of a plugin in a test, whatever the outcome of the ranks."""

    finder: str
    """The plugin, or its part, that has found it: ``order``."""
    kind: str
    """A word of the finder for what it is: ``mismatch``, ``group-order``, …"""
    message: str
    """One line: which rank does what, and where."""
    effect: str
    """What comes of it, on which backend."""
    advice: str
    """What to do next."""
    fails: bool = False
    """Whether it fails the test; else it is a warning beside the verdict."""
    orders: tuple[RankCalls, ...] = ()
    """The calls that it is about, rank by rank."""
    found_by: str = ""
    """The finder in the words of reports; empty: its name."""
    failure: str = ""
    """The kind of failure, in a word, where the finding fails a test; empty: ``finding``."""
    section: str = ""
    """The section of reports that lists it, where it fails no test; empty: that of its finder."""

    @property
    def source(self) -> str:
        """The finder in the words of reports."""
        return self.found_by or self.finder
