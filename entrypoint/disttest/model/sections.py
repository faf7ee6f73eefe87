"""Parts of a result that plugins supply: sections of reports, and the reasons why ranks cannot make progress."""

from __future__ import annotations

from typing import Any

from disttest.model.frozen import Frozen, Seconds


class Edge(Frozen):
    """A wait of one thread of a rank: an edge of a wait-for graph."""

    rank: int
    what: str
    """``all_reduce #3 of group default``, ``recv #1 from rank 0``, ``key 'ready' of a store``."""
    where: str = ""
    """``file:line`` of the call in the user's code."""
    since_s: Seconds = 0.0
    """Seconds of waiting when the graph was made."""
    ranks: tuple[int, ...] = ()
    """The ranks for which it waits."""
    reason: str = ""
    """State of those ranks: ``which has finished the test``."""
    group: str = ""
    seq: int = 0
    op: str = ""


class WaitGraph(Frozen):
    """Ranks, and the ranks for which each of them waits. The HTML page draws it."""

    edges: tuple[Edge, ...]
    """Edges in order of rank."""
    finished: tuple[int, ...] = ()
    """Ranks that have finished the test, or whose processes have ended."""


class Section(Frozen):
    """A plugin's part of the reports of a test. Every report shows it without knowing the plugin."""

    title: str = ""
    """One line. If it is empty, only ``results.json`` contains the section."""
    lines: tuple[str, ...] = ()
    waits: WaitGraph | None = None
    data: Any = None
    """JSON data for programs that read ``results.json``."""


class HangCause(Frozen):
    """Reason why the ranks of a test cannot make progress, found by the watch of a plugin while they waited."""

    name: str
    """Name of the plugin, and the word in reports for a test that was ended for this reason."""
    message: str
    """One line: the finding."""
    advice: str = ""
    """The next step."""
    culprit: int | None = None
    """The rank for which all others wait, if it is exactly one."""
    ends: bool = False
    """Whether it ends the test; otherwise the test continues until its time limit."""
    is_expected: bool = False
    """Whether the test expects it, and passes because of it."""
    section: Section = Section()
    """The plugin's section of the result."""

    @property
    def of_rank(self) -> str:
        """Message of a rank that was ended for this reason."""
        if self.is_expected:
            return f"was in the {self.name} that the test expects, and was ended by disttest"
        return f"waited in a {self.name}, ended by disttest"
