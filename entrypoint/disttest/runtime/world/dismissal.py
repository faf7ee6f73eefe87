"""End the ranks of a world: they leave on request within a time limit, otherwise by signals."""

from __future__ import annotations

from typing import NamedTuple

from disttest.host.process import end_all, wait_all
from disttest.limits import RANK_TERM_S
from disttest.model import rank_names
from disttest.runtime.messages.protocol import Leave
from disttest.runtime.world.attempt import Attempt
from disttest.runtime.world.rank_handles import RankProcessHandle, Supervisor


class Dismissal(NamedTuple):
    """Result of ending the ranks of a world."""

    stuck: frozenset[int] = frozenset()
    """Ranks that did not leave within the limit and were ended."""
    note: str = ""
    """A sentence that names the stuck ranks which had not been killed during their test; empty without any."""


def dismiss(ranks: Supervisor, limit_s: float) -> Dismissal:
    """Ask the living ranks to leave, wait ``limit_s`` seconds, then end the rest."""
    living = [handle for handle in ranks.handles if handle.child.poll() is None]
    # A rank that was given up no longer listens to its channel.
    end_all([handle.child for handle in living if handle.gone])
    for handle in living:
        handle.channel.send(Leave())
    wait_all((handle.child for handle in living), limit_s)
    stuck = [handle for handle in living if handle.child.poll() is None]
    slow = [handle.rank for handle in stuck if not _was_killed(ranks.attempt, handle.rank)]
    end_all([handle.child for handle in stuck], term_grace_s=RANK_TERM_S)
    return Dismissal(
        stuck=frozenset(handle.rank for handle in stuck),
        note=f"{rank_names(slow)} did not leave within {limit_s:g} s after its last test and was killed"
        if slow
        else "",
    )


def late_deaths(ranks: Supervisor, attempt: Attempt, stuck: frozenset[int]) -> list[RankProcessHandle]:
    """List the ranks that died by a signal or with an exit code after their test was judged."""
    return [
        handle
        for handle in ranks.handles
        if handle.rank not in stuck and not attempt.of(handle.rank).killed and handle.child.ended_badly
    ]


def _was_killed(attempt: Attempt | None, rank: int) -> bool:
    """Whether disttest killed the rank during its last test."""
    return attempt is not None and attempt.of(rank).killed
