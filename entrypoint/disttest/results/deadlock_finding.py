"""A proven deadlock in words: one line for the verdict, and what to do about it. Pure."""

from __future__ import annotations

from disttest.model import Deadlock, DeadlockKind, Edge, rank_names
from disttest.results.hang_findings import Finding

_MOST_EDGES = 8

_ADVICE = {
    DeadlockKind.FINISHED: "Every rank of a group has to make its calls: look for a branch, a loop or an early return that "
    "differs.",
    DeadlockKind.MISMATCH: "Ranks have to call the same things in one order, with tensors of the same size: look for a branch "
    "that differs before these lines, or for a length that each rank computes from its own data.",
    DeadlockKind.ROOTS: "All ranks have to name the same root (src, dst): it is a rank of the default group.",
    DeadlockKind.GROUPS: "Use groups in one order on all ranks that share them, or wait for the handles later.",
    DeadlockKind.CYCLE: "Ranks have to make their calls in an order in which each one meets its partner.",
    DeadlockKind.POINT_TO_POINT: "A send waits for its receive: let one side receive first, or use batch_isend_irecv. "
    "Peer, tag and group have to be the same on both sides.",
    DeadlockKind.STORE: "Nobody is left to set the key: set it before waiting for anything that depends on it.",
    DeadlockKind.ALONE: "Process groups are made by all ranks in one order, by those that will not be members too "
    "(or with use_local_synchronization).",
}


def describe_deadlock(deadlock: Deadlock) -> Finding:
    """The finding: who waits in what for whom, where, since when."""
    parts = [_describe(edge) for edge in deadlock.edges[:_MOST_EDGES]]
    parts += ["…"] if len(deadlock.edges) > _MOST_EDGES else []
    return Finding(f"deadlock: no rank can go on: {'; '.join(parts)}", _culprit(deadlock))


def advise(deadlock: Deadlock) -> str:
    """What to do next."""
    return _ADVICE[deadlock.kind]


def _describe(edge: Edge) -> str:
    place = f" at {edge.where}" if edge.where else ""
    whom = f" for {rank_names(edge.ranks)}" if edge.ranks else ""
    reason = f", {edge.reason}" if edge.reason else ""
    return f"rank {edge.rank} waits in {edge.what}{place} since {edge.since_s:.1f} s{whom}{reason}"


def _culprit(deadlock: Deadlock) -> int | None:
    """The only one that all wait for, if it has finished."""
    if deadlock.kind is not DeadlockKind.FINISHED:
        return None
    awaited = {rank for edge in deadlock.edges for rank in edge.ranks if rank in deadlock.finished}
    return awaited.pop() if len(awaited) == 1 else None
