"""Looks at the waits of the ranks of a running test, and finds a deadlock as soon as it can be proven.

The board costs a comparison of memory five times a second. Only when nothing has moved for a second, and the board says
that no rank can go on, are processes looked at, and last of all the ranks asked for their stacks.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from disttest.boards import Board
from disttest.clock import monotonic
from disttest.host.proc import catches, cpu_ticks, descendants, is_alive, is_at_rest
from disttest.limits import TICK_S
from disttest.model import HangCause, Outcome
from disttest.observe.records import WaitKind
from disttest.plugins.deadlock.differing_calls import (
    describe_differing_calls,
    find_odd_rank,
    waits_in_differing_call,
)
from disttest.plugins.deadlock.layout import SLOT
from disttest.plugins.deadlock.limits import FIRST_PAUSE_S, STACKS_S
from disttest.plugins.deadlock.proof import Situation, find_deadlock
from disttest.plugins.deadlock.proven import Deadlock, cause_of
from disttest.plugins.deadlock.snapshot import Snapshot, read_slot
from disttest.plugins.deadlock.stacks import confirm_rest, confirm_waits
from disttest.results.verdict import SIZES
from disttest.runtime.world.attempt import Attempt, RankProgress
from disttest.runtime.world.evidence import EvidenceSource, tell_stacks
from disttest.runtime.world.rank_watch import RankWatch

_STILL = 5
"""Looks in a row that have found nothing changed."""
_TRICKLE = 4
"""Hundredths of a second of a processor that a rank may spend meanwhile: the thread of each of gloo's groups looks a
hundred times a second whether a message has come. What computes spends ten times as much."""
_ALARMS = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)
"""A rank that handles one of them may be about to be woken."""


class WaitBoard(Board):
    """The board of a world on which ranks write what they wait in: a slot for each of them.

    Args:
        ranks: how many write to it.
    """

    def __init__(self, ranks: int) -> None:
        super().__init__("disttest-waits", ranks * SLOT)

    def slot(self, place: int) -> bytes:
        """Return what a rank has written so far."""
        return self._memory[place * SLOT : (place + 1) * SLOT]


class DeadlockWatch(RankWatch):
    """Looks at the ranks of one supervisor.

    Args:
        board: of these ranks; the first of them has the first slot.
        sources: how each rank is asked for its stacks.
        ends: whether a test ends for its deadlock; one that expects it does in any case.
    """

    def __init__(
        self, board: WaitBoard, sources: Callable[[], Mapping[int, EvidenceSource]], *, ends: bool
    ) -> None:
        self.for_ranks = str(board.path)
        self._board = board
        self._sources = sources
        self._ends = ends
        self.begin()

    def begin(self) -> None:
        """A test begins, or its ranks are waited for; they have begun to write by themselves."""
        self._next_s = monotonic() + TICK_S
        self._slots: Sequence[bytes] = ()
        self._on_gpu: frozenset[int] | None = None
        """None: not read since the slots have changed."""
        self._ticks: deque[Mapping[int, int]] = deque(maxlen=_STILL)
        """By rank, at each of the last looks that have found the slots as they are."""
        self._ask_after_s = 0.0
        self._pause_s = FIRST_PAUSE_S

    def look(self, attempt: Attempt) -> HangCause | None:
        """Look, if it is time; return the deadlock that is proven."""
        now_s = monotonic()
        if now_s < self._next_s:
            return None
        self._next_s = now_s + TICK_S
        if attempt.failed_s is not None or not attempt.living():
            return None
        if self._is_still(attempt) and now_s >= self._ask_after_s:
            return self._judge(attempt, now_s)
        return None

    def explain_abort(self, attempt: Attempt, rank: int, words: str) -> tuple[str, tuple[int, ...]]:
        """Compare the calls of all ranks, if gloo has aborted one for the size of a tensor; name one that differs."""
        if words and not SIZES.search(words):
            return "", ()
        snapshots = {progress.rank: read_slot(self._slot(attempt, progress)) for progress in attempt.ranks}
        if not words and not waits_in_differing_call(snapshots, rank):
            return (
                "",
                (),
            )  # a crash has many reasons; gloo crashes inside a call if it gets more than it has room for
        odd = find_odd_rank(snapshots, rank)
        return describe_differing_calls(snapshots, rank), () if odd is None else (odd,)

    def close(self) -> None:
        """Give the memory back."""
        self._board.close()

    def _is_still(self, attempt: Attempt) -> bool:
        """Whether nothing has moved for some looks."""
        slots = [self._slot(attempt, progress) for progress in attempt.ranks]
        if slots != self._slots:
            self._slots, self._pause_s, self._ask_after_s = slots, FIRST_PAUSE_S, 0.0
            self._ticks.clear()
            self._on_gpu = None
            return False
        on_gpu = self._ranks_on_gpu(attempt)
        try:
            self._ticks.append({p.rank: cpu_ticks(p.pid) for p in attempt.living() if p.rank not in on_gpu})
        except ProcessLookupError:  # its end is about to be noticed
            return False
        first, last = self._ticks[0], self._ticks[-1]
        if first.keys() != last.keys():
            self._ticks.clear()
            return False
        return len(self._ticks) == _STILL and all(last[rank] - first[rank] <= _TRICKLE for rank in last)

    def _ranks_on_gpu(self, attempt: Attempt) -> frozenset[int]:
        """Ranks that may ask their GPU again and again whether it has come to an end; slots that change are not read."""
        if self._on_gpu is None:
            self._on_gpu = frozenset(
                progress.rank
                for progress, slot in zip(attempt.ranks, self._slots, strict=True)
                if waits_for_gpu(read_slot(slot))
            )
        return self._on_gpu

    def _slot(self, attempt: Attempt, progress: RankProgress) -> bytes:
        return self._board.slot(progress.rank - attempt.ranks[0].rank)

    def _judge(self, attempt: Attempt, now_s: float) -> HangCause | None:
        situation = self._situation(attempt, now_s)
        deadlock = find_deadlock(situation)
        if deadlock is None or not self._are_alone(attempt, situation):
            return None
        if not self._is_confirmed(attempt, situation):
            self._ask_after_s = now_s + self._pause_s
            self._pause_s *= 2
            return None
        expected = is_expected(deadlock, situation.ranks)
        ended = expected or self._ends
        return cause_of(msgspec.structs.replace(deadlock, ended=ended), is_expected=expected)

    def _situation(self, attempt: Attempt, now_s: float) -> Situation:
        ranks: dict[int, Snapshot] = {}
        over: dict[int, Snapshot] = {}
        for progress in attempt.ranks:
            snapshot = read_slot(self._slot(attempt, progress))
            (over if progress.is_over else ranks)[progress.rank] = snapshot
        return Situation(
            ranks=ranks,
            over=over,
            dead=frozenset(p.rank for p in attempt.ranks if p.death is not None or p.lost),
            skipped=dict(_skips(attempt)),
            now_s=now_s,
            began_s=attempt.started_s,
            deadline_s=attempt.started_s + attempt.paused_s + attempt.limit_s,
        )

    def _are_alone(self, attempt: Attempt, situation: Situation) -> bool:
        """Whether no alarm, no thread with work to do, and no other process could wake a rank."""
        present = _present(attempt, situation)
        if any(catches(each.pid, number) for each in present for number in _ALARMS):
            return False
        on_gpu = self._ranks_on_gpu(attempt)
        if not all(is_at_rest(each.pid) for each in present if each.rank not in on_gpu):
            return False
        ours = {progress.pid for progress in attempt.ranks}
        return not any(is_alive(pid) for pid in descendants() - ours)

    def _is_confirmed(self, attempt: Attempt, situation: Situation) -> bool:
        """Whether the stacks show that everybody is where the board says."""
        present = _present(attempt, situation)
        sources = self._sources()
        told = tell_stacks([sources[progress.rank] for progress in present], limit_s=STACKS_S)
        stacks = {progress.rank: text for progress, text in zip(present, told, strict=True)}
        if any(self._slot(attempt, p) != slot for p, slot in zip(attempt.ranks, self._slots, strict=True)):
            return False
        return all(
            confirm_rest(text)
            if rank in situation.over
            else confirm_waits(text, _threads(situation.ranks[rank]))
            for rank, text in stacks.items()
        )


def _skips(attempt: Attempt) -> Iterator[tuple[int, str]]:
    """Each rank that skipped the test, and why."""
    for progress in attempt.ranks:
        reasons = [report.message for report in progress.reports if report.outcome is Outcome.SKIPPED]
        if progress.is_over and reasons and not all(report.partial for report in progress.reports):
            yield progress.rank, reasons[0]


def waits_for_gpu(snapshot: Snapshot) -> bool:
    """Whether a thread waits for a GPU: no time of the processor tells whether it goes on, and its stack does."""
    return any(wait.kind is WaitKind.DEVICE and wait.op for wait in snapshot.waits)


def _present(attempt: Attempt, situation: Situation) -> list[RankProgress]:
    return [progress for progress in attempt.ranks if progress.rank not in situation.dead]


def _threads(snapshot: Snapshot) -> dict[int, bool]:
    return {wait.thread: wait.in_cpp for wait in snapshot.waits}


def is_expected(deadlock: Deadlock, ranks: Mapping[int, Snapshot]) -> bool:
    """Whether all ranks that are at the test say that they expect it, in words that its finding matches."""
    message = cause_of(deadlock).message
    try:
        return all(each.expects and re.search(each.expectation, message) for each in ranks.values())
    except re.error:  # a broken rank has written it
        return False
