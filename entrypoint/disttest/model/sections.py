"""Parts of a result that plugins supply: their sections of reports, and why ranks cannot go on."""

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
    """How long it had waited when the graph was made."""
    ranks: tuple[int, ...] = ()
    """The ranks that it waits for."""
    reason: str = ""
    """What those do instead: ``which has finished the test``."""
    group: str = ""
    seq: int = 0
    op: str = ""


class WaitGraph(Frozen):
    """Ranks, and the ranks that each of them waits for. The HTML page draws it."""

    edges: tuple[Edge, ...]
    """In order of rank."""
    finished: tuple[int, ...] = ()
    """Ranks that have finished the test, or are gone."""


class Section(Frozen):
    """A plugin's part of the reports of a test. Every report shows it without knowing the plugin."""

    title: str = ""
    """One line; empty: reports do not show the section, and ``results.json`` has its data."""
    lines: tuple[str, ...] = ()
    waits: WaitGraph | None = None
    data: Any = None
    """JSON data for programs that read ``results.json``."""


class HangCause(Frozen):
    """Why the ranks of a test cannot go on, as the watch of a plugin has found while they waited."""

    name: str
    """Name of the plugin, and the word of reports for a test that was ended for it."""
    message: str
    """One line: the finding."""
    advice: str = ""
    """What to do next."""
    culprit: int | None = None
    """The rank that all others wait for, if it is one."""
    ends: bool = False
    """Whether the test ends for it; otherwise the test goes on to its time limit."""
    is_expected: bool = False
    """Whether the test wants this, and passes by it."""
    section: Section = Section()
    """The plugin's section of the result."""

    @property
    def of_rank(self) -> str:
        """The message of a rank that was ended for it."""
        if self.is_expected:
            return f"was in the {self.name} that the test expects, and was ended by disttest"
        return f"waited in a {self.name}, ended by disttest"
