"""Find the ranks that wait for a given rank from some call on: they must notice that it is gone. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from disttest.extras.chaos.case import BaselineCall, BaselineRank, Fault
from disttest.model import FROM_ROOT, TO_ROOT

_Key = tuple[object, ...]


def needing(ranks: Sequence[BaselineRank], fault: Fault) -> tuple[int, ...]:
    """Return the ranks that wait directly for data of the faulty one.

    The source of a broadcast and the sender of a message do not: they may have passed before the fault is noticeable.

    Args:
        ranks: calls of the baseline run.
        fault: the fault. The call itself has been sent if the fault is injected during it.
    """
    victim = next(rank for rank in ranks if rank.rank == fault.rank)
    numbers = {_key(call, victim.rank): number for number, call in enumerate(victim.calls, 1)}
    first = fault.call + fault.during
    return tuple(
        rank.rank
        for rank in ranks
        if rank.rank != victim.rank
        and any(
            _waits_for(call, rank.rank, victim.rank) and numbers.get(_key(call, rank.rank), 0) >= first
            for call in rank.calls
        )
    )


def _key(call: BaselineCall, rank: int) -> _Key:
    """Key that matching calls of different ranks share."""
    if call.peer is None:
        return call.group, call.seq
    ends = (rank, call.peer) if call.op == "send" else (call.peer, rank)
    return call.group, *ends, call.tag, call.seq


def _waits_for(call: BaselineCall, rank: int, victim: int) -> bool:
    if call.peer is not None:
        return call.op != "send" and call.peer == victim
    if victim not in call.members:
        return False
    if call.op in FROM_ROOT:
        return call.root == victim
    return call.op not in TO_ROOT or call.root == rank
