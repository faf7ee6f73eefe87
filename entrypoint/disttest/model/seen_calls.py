"""Calls of ranks as seen by plugins, and the findings of plugins."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from disttest.model.frozen import Frozen

FROM_ROOT = frozenset({"broadcast", "scatter"})
TO_ROOT = frozenset({"reduce", "gather", "gather_into_tensor"})
"""Names of the collectives in which one rank sends to all others, and of those in which one receives from all."""


class WindowEdge(StrEnum):
    """Position relative to the time in which a call is pending."""

    OPENS = "opens"
    """The call is issued."""
    INSIDE = "inside"
    CLOSES = "closes"
    """The call has been waited for."""


def short_place(file: str, line: int) -> str:
    """Return ``test_step.py:39``; empty without a file."""
    return f"{file.rpartition('/')[2]}:{line}" if file else ""


class SeenCall(Frozen):
    """A call to `torch.distributed` as seen by a plugin, or an action next to one."""

    what: str
    """``all_reduce SUM of float32[4], #3 of group default``."""
    file: str = ""
    """File of the line in the user's code: absolute, as seen by the run; empty if the call did not come from Python."""
    line: int = 0
    decides: bool = False
    """Whether the finding is about this call; the others show its surroundings."""
    window: WindowEdge | None = None
    """For a race: the position in the time in which a call is pending."""
    same: bool | None = None
    """Whether all ranks had the same values there; None if they were not compared."""

    @property
    def where(self) -> str:
        """``test_step.py:39``, or nothing."""
        return short_place(self.file, self.line)


class RankCalls(Frozen):
    """Calls of one rank, in the order in which it issued them."""

    rank: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    calls: tuple[SeenCall, ...]


class PluginFinding(Frozen):
    """A finding of a plugin in a test, whatever the outcome of the ranks."""

    finder: str
    """The plugin, or its part, that made the finding: ``order``."""
    kind: str
    """The finder's word for the kind: ``mismatch``, ``group-order``, …"""
    message: str
    """One line: the rank, its action, and the place."""
    effect: str
    """Consequence, and the affected backends."""
    advice: str
    """The next step."""
    fails: bool = False
    """Whether it fails the test; otherwise it is a warning next to the verdict."""
    orders: tuple[RankCalls, ...] = ()
    """The calls concerned, rank by rank."""
    found_by: str = ""
    """Name of the finder in reports; empty for ``finder``."""
    failure: str = ""
    """Word for the kind of failure if the finding fails a test; empty for ``finding``."""
    section: str = ""
    """Section of the reports that lists the finding if it fails no test; empty for the finder's own."""

    @property
    def source(self) -> str:
        """The finder's name in reports."""
        return self.found_by or self.finder
