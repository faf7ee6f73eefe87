"""A proven deadlock and its texts: one line for the verdict, and advice. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from disttest.model import Edge, Frozen, HangCause, Seconds, Section, TestResult, WaitGraph, rank_names

NAME = "deadlock"
"""Name of the plugin."""


class DeadlockKind(StrEnum):
    """Why no rank of a deadlock can continue."""

    FINISHED = "finished"
    """Ranks wait for a rank that has finished the test or ended."""
    MISMATCH = "mismatch"
    """Ranks have issued different calls at the same number of a group."""
    ROOTS = "roots"
    """Ranks have issued the same call with different roots."""
    GROUPS = "groups"
    """Ranks wait for each other in different groups."""
    CYCLE = "cycle"
    """Ranks wait for each other in calls of one group that do not meet."""
    POINT_TO_POINT = "point-to-point"
    """Ranks wait in sends and receives that do not match."""
    STORE = "store"
    """Ranks wait for keys that no rank is left to set."""
    ALONE = "alone"
    """Ranks wait in a constructor that others have not called."""


class Deadlock(Frozen):
    """The proof that no rank can continue: every thread of every rank waits for one of these ranks."""

    kind: DeadlockKind
    edges: tuple[Edge, ...]
    """The waits, in order of rank."""
    finished: tuple[int, ...] = ()
    """Ranks that have finished the test or ended."""
    after_s: Seconds = 0.0
    """Seconds from the start of the test to the proof."""
    ended: bool = False
    """Whether the test was ended. Otherwise it continued to its time limit."""


class _Rest(Frozen):
    """The data of the plugin's section: the part of a proof that is not in the graph."""

    kind: DeadlockKind
    after_s: Seconds = 0.0
    ended: bool = False


_MOST_PARTS = 8

_ADVICE = {
    DeadlockKind.FINISHED: "Every rank of a group must make its calls: look for a branch, a loop or an early return that "
    "differs.",
    DeadlockKind.MISMATCH: "Ranks must make the same calls in the same order, with tensors of the same size: look for a branch "
    "that differs before these lines, or for a length that each rank computes from its own data.",
    DeadlockKind.ROOTS: "All ranks must name the same root (src, dst), which is a rank of the default group.",
    DeadlockKind.GROUPS: "Use groups in the same order on all ranks that share them, or wait for the handles later.",
    DeadlockKind.CYCLE: "Order the calls of the ranks so that each call meets its partner.",
    DeadlockKind.POINT_TO_POINT: "A send waits for its receive: let one side receive first, or use batch_isend_irecv. "
    "Peer, tag and group must be the same on both sides.",
    DeadlockKind.STORE: "No running rank can set the key: set it before waiting for anything that depends on it.",
    DeadlockKind.ALONE: "All ranks must create process groups in the same order, also groups that they do not join "
    "(or set use_local_synchronization).",
}


def cause_of(deadlock: Deadlock, *, is_expected: bool = False) -> HangCause:
    """Return the finding of a deadlock: for each rank its wait, the awaited ranks, the line and the time.

    Args:
        deadlock: the proof.
        is_expected: whether the test expects it.
    """
    rest = _Rest(kind=deadlock.kind, after_s=deadlock.after_s, ended=deadlock.ended)
    return HangCause(
        name=NAME,
        message=_message(deadlock),
        advice=_ADVICE[deadlock.kind],
        culprit=_culprit(deadlock),
        ends=deadlock.ended,
        is_expected=is_expected,
        section=Section(
            waits=WaitGraph(edges=deadlock.edges, finished=deadlock.finished), data=msgspec.to_builtins(rest)
        ),
    )


def proof_of(result: TestResult) -> Deadlock | None:
    """Return the proof that the ranks of a test waited for each other; None if there is none."""
    section = result.sections.get(NAME)
    if section is None or section.waits is None:
        return None
    rest = msgspec.convert(section.data, _Rest)
    return Deadlock(
        kind=rest.kind,
        edges=section.waits.edges,
        finished=section.waits.finished,
        after_s=rest.after_s,
        ended=rest.ended,
    )


class _Part(NamedTuple):
    """Ranks that one part of the message describes together."""

    what: str
    where: str
    call: tuple[str, int] | None
    """Group and number, where ranks have called different things under them."""
    awaited: str
    """The ranks that they wait for, if no other part of the message shows it."""


def _message(deadlock: Deadlock) -> str:
    """Describe equal ranks once: a message about 256 ranks must be as short as one about two."""
    parts: dict[_Part, list[int]] = {}
    for edge in deadlock.edges:
        call = (edge.group, edge.seq) if deadlock.kind is DeadlockKind.MISMATCH and edge.seq else None
        part = _Part(edge.what, edge.where, call, _describe_awaited(edge, call, deadlock.edges))
        parts.setdefault(part, []).append(edge.rank)
    ordered = list(parts.items())
    if deadlock.kind is DeadlockKind.MISMATCH:
        ordered.sort(key=lambda item: -len(item[1]))  # the rank that differs from the others comes last
    first = ordered[0][0]
    texts = [_describe(part, ranks, first) for part, ranks in ordered[:_MOST_PARTS]]
    texts += ["…"] if len(ordered) > _MOST_PARTS else []
    return f"deadlock: {'; '.join(texts)}"


def _describe(part: _Part, ranks: Sequence[int], first: _Part) -> str:
    place = f" ({part.where})" if part.where else ""
    if part.call is not None and part.call == first.call and part.what != first.what and not part.awaited:
        return f"{rank_names(ranks)} called {part.what} instead{place}"
    return f"{rank_names(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in {part.what}{place}{part.awaited}"


def _describe_awaited(edge: Edge, call: tuple[str, int] | None, edges: Sequence[Edge]) -> str:
    """`` for rank 1, which has finished the test``; empty if the parts of the message about these ranks show it."""
    waiting = {other.rank for other in edges}
    instead = {other.rank for other in edges if (other.group, other.seq) == call and other.what != edge.what}
    is_shown = instead.issuperset(edge.ranks) or (not edge.reason and waiting.issuperset(edge.ranks))
    return "" if is_shown else f" for {rank_names(edge.ranks)}{', ' if edge.reason else ''}{edge.reason}"


def _culprit(deadlock: Deadlock) -> int | None:
    """Return the only rank that all others wait for, if it has finished."""
    if deadlock.kind is not DeadlockKind.FINISHED:
        return None
    awaited = {rank for edge in deadlock.edges for rank in edge.ranks if rank in deadlock.finished}
    return awaited.pop() if len(awaited) == 1 else None
