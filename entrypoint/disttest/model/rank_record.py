"""What one rank did in an attempt of a test."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import msgspec

from disttest.model.frozen import Frozen, Seconds
from disttest.model.outcomes import Outcome, RankEnd
from disttest.model.recorded import Recorded

MAIN_RANK = -1
RANKS_DISAGREE = "ranks disagree at "
"""How a finding begins that tells of calls that do not fit, by which it is known among the words of a rank's end."""


def rank_name(rank: int) -> str:
    """``rank 3``; the main process is no rank."""
    return "main process" if rank == MAIN_RANK else f"rank {rank}"


def rank_names(ranks: Collection[int]) -> str:
    """``rank 1``, ``ranks 1,2``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {','.join(map(str, sorted(ranks)))}"


def group_title(name: str, description: str, ranks: Collection[int]) -> str:
    """``default``, as its maker has called it, or its number and ranks: ``#1 (ranks 0,1)``.

    Args:
        name: torch's; a hash where only its members have made the group.
        description: empty where its maker has not described it.
        ranks: of the default group.
    """
    return description or (
        f"#{name} ({rank_names(ranks)})" if name.isdecimal() else f"of {rank_names(ranks)}"
    )


class Collective(Frozen):
    """One collective, or point-to-point call, of a rank."""

    group: str
    seq: int
    """Sequence number within the group: ranks that agree have called the same thing at the same number."""
    op: str
    backend: str = ""
    inputs: str = ""
    """Dtypes and shapes of the inputs: ``float32[4, 3]``."""
    outputs: str = ""
    done: bool = False
    at_s: Seconds = 0.0
    where: str = ""
    """``file:line`` of the call in the user's code."""
    p2p: bool = False

    @property
    def name(self) -> str:
        """``all_reduce #7 (group default)``."""
        return f"{self.op} #{self.seq} (group {self.group})"


class RankRecord(Frozen):
    """What one rank did in one attempt of a test."""

    rank: Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)]
    """:data:`MAIN_RANK` for the main process of a test that starts its ranks by itself."""
    end: RankEnd
    outcome: Outcome | None = None
    """None unless the rank reported."""
    phase: str = "setup"
    """The phase it was in last, or the phase that failed: setup, call or teardown."""
    message: str = ""
    """One line: the exception, the skip reason, or what ended the process."""
    details: str = ""
    """Traceback and captured sections of a failure."""
    stacks: str = ""
    """Python stacks of all its threads, where they were taken."""
    collectives: tuple[Collective, ...] = ()
    """The last collectives it had called in this test, where they were asked for."""
    unrendered: bool = False
    """It failed, and its report could not be rendered: the message and details are those that need no code of the test."""
    because_of: tuple[int, ...] = ()
    """The ranks that had not joined the call in which it failed, or the one rank that called something else, if known."""
    in_flight: str = ""
    """The exception that was passing through a ``finally``, ``with`` or ``except`` block when the rank was ended."""
    failed_after_s: Seconds | None = None
    """Seconds from the start of the test to this rank's failure or death."""
    exit_code: int | None = None
    signal: int | None = None
    hung: bool = False
    """It was still running when the test's deadline passed."""
    ended_for: str = ""
    """Why no rank could go on, in a word of the plugin that found it, where disttest ended the rank for that."""
    pid: int = 0
    log: str = ""
    """Its log file, relative to the results directory."""
    xfail: bool = False
    """Its test was marked as an expected failure when the rank began with its last phase; true if it began with none."""
    subtests_skipped: int = 0
    """Subtests of a test that passed which were skipped, or failed as expected."""
    leaks: tuple[str, ...] = ()
    """What the test left behind in this rank, by name."""
    recorded: Recorded = Recorded()
    """Warnings and facts that the test recorded in this rank."""
    durations_s: dict[str, Seconds] = msgspec.field(default_factory=dict)
    """Phase -> seconds."""
    node: str = ""
    """The machine that it ran on, where a world spans several."""

    @property
    def has_failed(self) -> bool:
        """Whether it reported a failure; its process may have died after that."""
        return self.outcome is not None and self.outcome.is_bad

    @property
    def has_died(self) -> bool:
        """Whether its process ended, or its channel broke, without our doing."""
        return self.end in (RankEnd.EXITED, RankEnd.SIGNALLED, RankEnd.LOST)
