"""The watch over the waits of a running test's ranks: it finds a deadlock as soon as it can be proven.

The board costs a memory comparison five times a second. Only if nothing has changed for a second, and the board
shows that no rank can continue, are processes examined, and finally the ranks asked for their stacks.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from disttest.boards import Board
from disttest.clock import monotonic, sleep
from disttest.host.proc import catches, descendants, is_alive, stat_of
from disttest.limits import EVIDENCE_POLL_S, TICK_S
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
from disttest.results.hang_findings import is_torchs
from disttest.results.verdict import SIZES
from disttest.runtime.world.attempt import Attempt, RankProgress
from disttest.runtime.world.evidence import EvidenceSource, collect_stacks
from disttest.runtime.world.rank_watch import RankWatch

# faulthandler writes "Current thread 0x00007f2ab8c8d740 (most recent call first):", and below it lines like
# '  File "/t.py", line 5 in wait'. An empty line separates threads.
_HEADER = re.compile(r"^(?:Current t|T)hread 0x([0-9a-f]+)")
_FRAME = re.compile(r'^  File "([^"]+)", line \d+ in (\S+)', re.MULTILINE)
_IN_WAITS = re.compile(r"/(torch|disttest/observe)/")
_ANSWERS = {"_answer": "/disttest/runtime/rank/flight.py", "_event_listener": "/common_distributed.py"}
"""Threads of disttest and torch that only wait for questions about their rank: function, mapped to its file."""
_AT_REST = re.compile(r"/disttest/runtime/")

ENTRIES = frozenset(
    {
        "_engine_run_backward",
        "run_backward",
        "_verify_param_shape_across_processes",
        "_sync_module_states",
        "_sync_params_and_buffers",
        "_ddp_init_helper",
        "_build_debug_param_to_name_mapping",
        "_sync_buffers",
        "_sync_module_buffers",
        "_default_broadcast_coalesced",
        "_distributed_broadcast_coalesced",
        "_pre_forward",
    }
)
"""Functions of torch that wait in C++ for calls that they have issued there."""


class DumpedThread(NamedTuple):
    """A thread in a stack dump."""

    ident: int
    frames: list[tuple[str, str]]
    """File and function, innermost first."""

    @property
    def innermost(self) -> tuple[str, str]:
        """The innermost frame; empty without a Python frame."""
        return self.frames[0] if self.frames else ("", "")

    @property
    def answers(self) -> bool:
        """Whether it only answers questions."""
        # No path ends with a line break, so functions that are not in the table match nothing.
        return any(file.endswith(_ANSWERS.get(function, "\n")) for file, function in self.frames)


def read_threads(stacks: str) -> list[DumpedThread]:
    """Parse the threads of a dump by faulthandler."""
    threads = []
    for part in stacks.split("\n\n"):
        header = _HEADER.match(part)
        if header is not None:
            threads.append(DumpedThread(int(header[1], 16), _FRAME.findall(part)))
    return threads


def confirm_waits(stacks: str, waits: Mapping[int, bool]) -> bool:
    """Return whether the board accounts for all threads of a rank in its test.

    Args:
        stacks: complete output of faulthandler.
        waits: thread, mapped to whether its last event was a call issued by C++.
    """
    threads = read_threads(stacks)
    known = {thread.ident for thread in threads}
    # A waiting thread that the dump lacks has ended since the board was read.
    return known.issuperset(waits) and all(_is_confirmed(thread, waits) for thread in threads)


def _is_confirmed(thread: DumpedThread, waits: Mapping[int, bool]) -> bool:
    # An unknown thread may compute, and then make the call for which the others wait. Nothing is proven
    # then.
    if thread.ident not in waits:
        return thread.answers
    file, function = thread.innermost
    if waits[thread.ident] and "/disttest/observe/" not in file:
        return function in ENTRIES and is_torchs(file)
    # The thread is in a Python function of torch or of the observing layer, as its wait on the board says.
    return _IN_WAITS.search(file) is not None


def confirm_rest(stacks: str) -> bool:
    """Return whether a rank that has finished the test only waits for the next one."""
    threads = read_threads(stacks)
    # No thread at all: the rank did not write its stacks in time.
    return bool(threads) and all(thread.answers or _AT_REST.search(thread.innermost[0]) for thread in threads)


_STILL = 5
"""Number of consecutive observations without a change before a proof is attempted."""
_TRICKLE = 4
"""CPU time in hundredths of a second that a waiting rank may use meanwhile: the thread of each of gloo's groups polls
a hundred times a second for a message. A computing rank uses ten times as much.
"""
_REST_LOOKS = 10
"""Number of looks at which a rank may be at rest."""
_ALARMS = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)
"""Signals that may wake a rank soon, if it handles one of them."""


class WaitBoard(Board):
    """The board of a world, on which ranks write their waits: one slot for each of them.

    Args:
        ranks: number of ranks.
    """

    def __init__(self, ranks: int) -> None:
        super().__init__("disttest-waits", ranks * SLOT)

    def slot(self, place: int) -> bytes:
        """Return the current slot of a rank."""
        return self._memory[place * SLOT : (place + 1) * SLOT]


class DeadlockWatch(RankWatch):
    """The watch over the ranks of one supervisor.

    Args:
        board: the board of these ranks; the first rank has the first slot.
        sources: returns how to ask each rank for its stacks.
        ends: whether a deadlock ends its test; one that is expected does in any case.
    """

    def __init__(
        self, board: WaitBoard, sources: Callable[[], Mapping[int, EvidenceSource]], *, ends: bool
    ) -> None:
        # Sent to the ranks, which open the board by this path.
        self.for_ranks = str(board.path)
        self._board = board
        self._sources = sources
        self._ends = ends
        self.begin()

    def begin(self) -> None:
        """Reset for a new test, or when its ranks are awaited. The ranks reset their slots themselves."""
        self._next_s = monotonic() + TICK_S
        self._slots: Sequence[bytes] = ()
        self._on_gpu: frozenset[int] | None = None
        """None if not read since the slots have changed."""
        self._ticks: deque[Mapping[int, int]] = deque(maxlen=_STILL)
        """CPU time by rank, at each of the last observations without a change."""
        self._ask_after_s = 0.0
        self._pause_s = FIRST_PAUSE_S

    def look(self, attempt: Attempt) -> HangCause | None:
        """Observe the ranks if it is time; return a proven deadlock."""
        now_s = monotonic()
        if now_s < self._next_s:
            return None
        self._next_s = now_s + TICK_S
        # After a failure the other ranks wait in vain for the failed one. That is a consequence, and the
        # failure is the finding.
        if attempt.failed_s is not None or not attempt.living():
            return None
        if self._is_still(attempt) and now_s >= self._ask_after_s:
            return self._judge(attempt, now_s)
        return None

    def explain_abort(self, attempt: Attempt, rank: int, words: str) -> tuple[str, tuple[int, ...]]:
        """Compare the calls of all ranks if gloo has aborted one for the size of a tensor; name one that differs."""
        if words and not SIZES.search(words):
            return "", ()
        snapshots = {progress.rank: read_slot(self._slot(attempt, progress)) for progress in attempt.ranks}
        # A crash has many reasons. gloo crashes inside a call if it receives more data than fits:
        # https://github.com/NVIDIA/nccl/issues/1394 shows the message, https://github.com/pytorch/gloo/pull/456 improves it.
        if not words and not waits_in_differing_call(snapshots, rank):
            return "", ()
        odd = find_odd_rank(snapshots, rank)
        return describe_differing_calls(snapshots, rank), () if odd is None else (odd,)

    def close(self) -> None:
        """Release the memory."""
        self._board.close()

    def _is_still(self, attempt: Attempt) -> bool:
        """Return whether nothing has changed for several observations."""
        slots = [self._slot(attempt, progress) for progress in attempt.ranks]
        # Bytes are compared, not their content: this happens five times a second in every world.
        if slots != self._slots:
            self._slots, self._pause_s, self._ask_after_s = slots, FIRST_PAUSE_S, 0.0
            self._ticks.clear()
            self._on_gpu = None
            return False
        on_gpu = self._ranks_on_gpu(attempt)
        try:
            # CUDA polls by default, so a rank that waits for its GPU uses a whole processor.
            self._ticks.append({p.rank: cpu_ticks(p.pid) for p in attempt.living() if p.rank not in on_gpu})
        except ProcessLookupError:  # its end will be noticed next
            return False
        first, last = self._ticks[0], self._ticks[-1]
        # A rank has ended meanwhile, so the sums of fewer ranks cannot be compared.
        if first.keys() != last.keys():
            self._ticks.clear()
            return False
        return len(self._ticks) == _STILL and all(last[rank] - first[rank] <= _TRICKLE for rank in last)

    def _ranks_on_gpu(self, attempt: Attempt) -> frozenset[int]:
        """Return ranks that may poll their GPU actively. Slots that change are not read."""
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
        # The cheapest question comes first: the board, then /proc, then the stacks, for which all ranks are
        # interrupted.
        deadlock = find_deadlock(situation)
        if deadlock is None or not self._are_alone(attempt, situation):
            return None
        if not self._is_confirmed(attempt, situation):
            self._ask_after_s = now_s + self._pause_s
            # An attempt interrupts every rank, and some ranks never confirm: without a pause they slow down.
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
        """Return whether no alarm, active thread or other process could wake a rank."""
        present = _present(attempt, situation)
        if any(catches(each.pid, number) for each in present for number in _ALARMS):
            return False
        on_gpu = self._ranks_on_gpu(attempt)
        if not come_to_rest([each.pid for each in present if each.rank not in on_gpu]):
            return False
        # A child of a test may set the awaited key, or be the awaited process of a group.
        ours = {progress.pid for progress in attempt.ranks}
        return not any(is_alive(pid) for pid in descendants() - ours)

    def _is_confirmed(self, attempt: Attempt, situation: Situation) -> bool:
        """Return whether the stacks confirm the waits on the board."""
        present = _present(attempt, situation)
        sources = self._sources()
        texts = collect_stacks([sources[progress.rank] for progress in present], limit_s=STACKS_S)
        stacks = {progress.rank: text for progress, text in zip(present, texts, strict=True)}
        # A rank that has moved meanwhile makes stacks and board pictures of different moments.
        if any(self._slot(attempt, p) != slot for p, slot in zip(attempt.ranks, self._slots, strict=True)):
            return False
        return all(
            confirm_rest(text)
            if rank in situation.over
            else confirm_waits(text, _threads(situation.ranks[rank]))
            for rank, text in stacks.items()
        )


def come_to_rest(pids: Sequence[int]) -> bool:
    """Return whether each process is at rest at one of several looks.

    Of hundreds of ranks one is always running, as gloo's threads poll: with 256 ranks on two processors it took 90 looks,
    and half a minute, until all were at rest at the same time.
    """
    for _ in range(_REST_LOOKS):
        pids = [pid for pid in pids if not is_at_rest(pid)]
        if not pids:
            return True
        sleep(EVIDENCE_POLL_S)
    return False


def _skips(attempt: Attempt) -> Iterator[tuple[int, str]]:
    """Yield each rank that skipped the test, with the reason."""
    for progress in attempt.ranks:
        reasons = [report.message for report in progress.reports if report.outcome is Outcome.SKIPPED]
        if progress.is_over and reasons and not all(report.partial for report in progress.reports):
            yield progress.rank, reasons[0]


def waits_for_gpu(snapshot: Snapshot) -> bool:
    """Return whether a thread waits for a GPU. Its CPU time does not show whether it continues, but its stack does."""
    return any(wait.kind is WaitKind.DEVICE and wait.op for wait in snapshot.waits)


def _present(attempt: Attempt, situation: Situation) -> list[RankProgress]:
    # A dead rank has neither stacks nor alarms. Its board still shows its calls.
    return [progress for progress in attempt.ranks if progress.rank not in situation.dead]


def _threads(snapshot: Snapshot) -> dict[int, bool]:
    return {wait.thread: wait.in_cpp for wait in snapshot.waits}


def is_expected(deadlock: Deadlock, ranks: Mapping[int, Snapshot]) -> bool:
    """Return whether all ranks in the test expect this deadlock, with a pattern that its finding matches."""
    message = cause_of(deadlock).message
    try:
        return all(each.expects and re.search(each.expectation, message) for each in ranks.values())
    # `expect_deadlock` has compiled the pattern in the test itself.
    except re.error:  # written by a broken rank
        return False


def cpu_ticks(pid: int) -> int:
    """Return the CPU time of all threads of a process, in hundredths of a second.

    Raises:
        ProcessLookupError: the process has ended.
    """
    # utime and stime, fields 14 and 15 in proc(5); stat_of begins with field 3.
    return sum(map(int, stat_of(pid)[11:13]))


def is_at_rest(pid: int) -> bool:
    """Return whether all threads of a process are waiting."""
    try:
        threads = [task / "stat" for task in Path(f"/proc/{pid}/task").iterdir()]
        # One file for each thread: "4711 (pt_gloo_runloop) S 1 …". The name may contain brackets itself.
        states = {path.read_text().rpartition(")")[2].split()[0] for path in threads}
    except OSError:
        return False
    # R runs. D waits for a disk or a driver, which answers without any other rank.
    return states <= {"S", "I"}
