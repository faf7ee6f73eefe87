"""End the ranks of a world: they leave on request within a time limit, otherwise by signals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from disttest.host.process import Child, end_all, wait_all
from disttest.limits import RANK_TERM_S
from disttest.model import FEW_RANKS, rank_names
from disttest.runtime.messages.protocol import Leave
from disttest.runtime.world.attempt import Attempt
from disttest.runtime.world.rank_handles import RankProcessHandle, Supervisor

# Of 64 ranks on two loaded processors, 36 had not torn down one second after a failure, and were killed.
_MOST_LIMITS = 4
"""How often the limit begins for the ranks of a large world, which tear down one after another on shared processors. All
together must be shorter than the time after which the controller takes a silent world for stuck.
"""


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
    children = [handle.child for handle in living]
    # A cancelled world keeps one limit, since the controller kills it after WORLD_POOL_CANCEL_S.
    is_large = len(living) > FEW_RANKS and not _is_cancelled(ranks.attempt)
    wait_for_ends(children, limit_s, most=_MOST_LIMITS if is_large else 1)
    stuck = [handle for handle in living if handle.child.poll() is None]
    slow = [handle.rank for handle in stuck if not _was_killed(ranks.attempt, handle.rank)]
    end_all([handle.child for handle in stuck], term_grace_s=RANK_TERM_S)
    return Dismissal(
        stuck=frozenset(handle.rank for handle in stuck),
        note=_describe(slow, limit_s) if slow else "",
    )


def wait_for_ends(ranks: Sequence[Child], limit_s: float, *, most: int) -> None:
    """Wait until all ranks have ended, or none has ended within the limit.

    Args:
        ranks: the processes.
        limit_s: the limit, in seconds.
        most: how often the limit begins.
    """
    left = ranks
    for _ in range(most):
        before = left
        wait_all(before, limit_s)
        left = [rank for rank in before if rank.poll() is None]
        # Without a single end in a whole period, the ranks wait for something other than a processor.
        if not left or len(left) == len(before):
            return


def _describe(slow: Sequence[int], limit_s: float) -> str:
    whose, was = ("its", "was") if len(slow) == 1 else ("their", "were")
    return f"{rank_names(slow)} did not leave within {limit_s:g} s after {whose} last test and {was} killed"


def late_deaths(
    ranks: Supervisor, attempt: Attempt, stuck: frozenset[int], *, healthy: bool
) -> list[RankProcessHandle]:
    """List the ranks that died by a signal or with an exit code after their test was judged.

    Args:
        ranks: the ranks.
        attempt: the last test.
        stuck: ranks that did not leave within the limit.
        healthy: whether the world could have run another test. Otherwise libraries may abort a rank at its exit, because its
            groups are broken, and only its fixtures count.
    """
    # Ranks whose peers were ended lose connections, and their libraries may crash for that reason.
    if attempt.failed_s is not None and any(progress.killed for progress in attempt.ranks):
        return []
    return [
        handle
        for handle in ranks.handles
        if handle.rank not in stuck
        and not attempt.of(handle.rank).killed
        # Otherwise it died in its test, as a plugin may have wanted.
        and attempt.of(handle.rank).done is not None
        and handle.child.ended_badly
        and (healthy or not attempt.of(handle.rank).torn_down)
    ]


def _is_cancelled(attempt: Attempt | None) -> bool:
    return attempt is None or bool(attempt.cancelled)


def _was_killed(attempt: Attempt | None, rank: int) -> bool:
    """Whether disttest killed the rank during its last test."""
    return attempt is not None and attempt.of(rank).killed
