"""The proof of a deadlock: the graph of who waits for whom."""

from __future__ import annotations

from enum import StrEnum

from disttest.model.frozen import Frozen, Seconds


class DeadlockKind(StrEnum):
    """Why no rank of a deadlock can go on."""

    FINISHED = "finished"
    """They wait for a rank that has finished the test, or is gone."""
    MISMATCH = "mismatch"
    """They have called different things at one number of a group."""
    ROOTS = "roots"
    """They have called the same, with different roots."""
    GROUPS = "groups"
    """They wait in different groups for each other."""
    CYCLE = "cycle"
    """They wait for each other in calls of one group that do not meet."""
    POINT_TO_POINT = "point-to-point"
    """They wait in sends and receives that do not match."""
    STORE = "store"
    """They wait for keys that nobody is left to set."""
    ALONE = "alone"
    """They wait in a constructor that others have not called."""


class Edge(Frozen):
    """What one thread of a rank waits in, and for whom: the edges of a wait-for graph."""

    rank: int
    what: str
    """``all_reduce #3 of group default``, ``recv #1 from rank 0``, ``key 'ready' of a store``."""
    where: str = ""
    """``file:line`` of the call in the user's code."""
    since_s: Seconds = 0.0
    """How long it had waited when the deadlock was proven."""
    ranks: tuple[int, ...] = ()
    """Whom it waits for."""
    reason: str = ""
    """What those do instead: ``which has finished the test``."""
    group: str = ""
    seq: int = 0
    op: str = ""


class Deadlock(Frozen):
    """The proof that no rank can go on: every thread of every rank waits for something that only these ranks could end."""

    kind: DeadlockKind
    edges: tuple[Edge, ...]
    """In order of rank."""
    finished: tuple[int, ...] = ()
    """Ranks that have finished the test, or are gone."""
    after_s: Seconds = 0.0
    """Seconds from the start of the test to the proof."""
    ended: bool = False
    """Whether the test was ended for it; else it went on to its time limit."""
