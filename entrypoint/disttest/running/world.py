"""A world: starts its ranks, gives them one test after another, ends them, and judges what they did.

Runs in a process of its own, a session leader and the adopter of whatever its ranks leave behind. It has
one thread of Python and one loop: it waits for messages, for deaths and for time, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from disttest.errors import ProtocolError
from disttest.host.process import Child, adopt_orphans, children_of, end_all, kill_descendants
from disttest.model import TestCase, TestResult
from disttest.results.narrative import shorten_stacks
from disttest.results.verdict import judge
from disttest.running.attempt import Attempt, Progress
from disttest.running.evidence import STACKS_HEADING, StackSource, take_stacks
from disttest.running.logs import RankLog
from disttest.running.protocol import (
    AnyMessage,
    Cancel,
    Channel,
    Leave,
    PhaseBegan,
    PhaseEnded,
    RankReady,
    RunTest,
    TestBegan,
    TestDone,
    TestJudged,
    WorldClosed,
    WorldOrder,
)
from disttest.running.rank import RankSpec

TERM_GRACE_S = 0.1
"""A rank that is ended gets this long between TERM and KILL."""
STACKS_LIMIT_S = 0.4
LEAVE_LIMIT_S = 5.0
"""How long the ranks of a healthy world may take to tear down and end."""
BROKEN_LEAVE_LIMIT_S = 1.0
START_LIMIT_S = 120.0
_START_LOG_KEPT = 16 * 1024
_TICK_S = 0.2
"""How often log sizes are looked at while a test runs."""

RankStarter = Callable[[RankSpec, Channel, Sequence[int]], Child]
"""Starts a rank: who it is, its end of the channel, and descriptors that it must close."""


@dataclass(kw_only=True)
class Seat:
    """A rank as its world holds it."""

    spec: RankSpec
    channel: Channel
    child: Child
    stacks: StackSource
    ready: bool = False
    gone: bool = False

    @property
    def rank(self) -> int:
        """Its number."""
        return self.spec.rank


class World:
    """The supervisor. ``run`` is the whole life of the process."""

    def __init__(
        self, order: WorldOrder, controller: Channel, start_rank: RankStarter, clock: Callable[[], float]
    ) -> None:
        self._order = order
        self._controller = controller
        self._start_rank = start_rank
        self._clock = clock
        self._seats: list[Seat] = []
        self._selector = selectors.DefaultSelector()
        self._attempt: Attempt | None = None
        self._reason = ""
        self._abandoned = False
        self._stuck: set[int] = set()
        self._keep: list[object] = []

    def run(self) -> None:
        """Start the ranks, run the tests until one breaks the world, end everything, say so."""
        adopt_orphans()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(
            signal.SIGTERM, lambda _signal, _frame: self._cancel("the world was told to end (SIGTERM)")
        )
        self._selector.register(self._controller, selectors.EVENT_READ, self._on_controller)
        try:
            self._start_ranks()
            self._run_tests()
        except BaseException:
            # Whatever it says now could be wrong: end everything, and let the controller blame this world.
            self._abandoned = True
            self._close()
            raise
        self._close()

    # --- starting

    def _start_ranks(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        shape = self._order.tests[0].world
        assert shape is not None
        for rank in range(shape.size):
            self._seats.append(self._start_one(rank, listener))
        self._host_store(listener)
        deadline = time.monotonic() + START_LIMIT_S
        while not all(seat.ready or seat.gone for seat in self._seats):
            if time.monotonic() > deadline or self._reason:
                break
            self._wait(_TICK_S)

    def _start_one(self, rank: int, listener: socket.socket) -> Seat:
        order = self._order
        shape = order.tests[0].world
        assert shape is not None
        scratch = Path(order.scratch_dir)
        spec = RankSpec(
            rank=rank,
            shape=shape,
            world_id=order.world_id,
            world_pid=os.getpid(),
            master_port=listener.getsockname()[1] if _has_store() else 0,
            devices=order.devices,
            stacks=scratch / f"rank{rank}.stacks",
            scratch=scratch / f"rank{rank}",
            log=scratch / f"rank{rank}.log",
            seed=order.seed,
            threads=order.threads,
        )
        ours, theirs = Channel.pair()
        not_its_own = [ours.fileno(), self._controller.fileno(), listener.fileno()]
        not_its_own += [seat.channel.fileno() for seat in self._seats]
        child = self._start_rank(spec, theirs, not_its_own)
        theirs.close()
        seat = Seat(spec=spec, channel=ours, child=child, stacks=StackSource(child, spec.stacks))
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._on_channel(seat))
        self._selector.register(child, selectors.EVENT_READ, lambda: self._on_death(seat))
        return seat

    def _host_store(self, listener: socket.socket) -> None:
        """Serve the rendezvous on the socket that listened before the first rank was started.

        Nobody picks a port and hopes, and no client knocks before somebody listens (a client that does
        backs off for seconds). The server is a thread of C++, started after the last fork.
        """
        if not _has_store():
            listener.close()
            return
        import torch.distributed as dist

        port = listener.getsockname()[1]
        store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        self._keep.append(store)

    # --- running

    def _run_tests(self) -> None:
        order = self._order
        for index, test in enumerate(order.tests):
            if self._reason or self._abandoned:
                return
            following = order.tests[index + 1].nodeid if index + 1 < len(order.tests) else None
            attempt = self._begin(test, order.attempts[index], index, following)
            self._watch(attempt)
            if not self._conclude(attempt):
                return
            self._wait(0)

    def _begin(self, test: TestCase, number: int, generation: int, following: str | None) -> Attempt:
        relative = f"logs/{test.slug}/attempt-{number}"
        folder = Path(self._order.results_dir) / relative
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(self._order.scratch_dir) / f"shared-{generation}"
        scratch.mkdir(parents=True, exist_ok=True)
        ranks = [
            Progress(rank=seat.rank, pid=seat.child.pid, log=f"{relative}/rank{seat.rank}.log")
            for seat in self._seats
        ]
        self._attempt = attempt = Attempt(
            test=test, number=number, started_s=time.monotonic(), started_at_s=self._clock(), ranks=ranks
        )
        self._controller.send(TestBegan(nodeid=test.nodeid))
        for seat, progress in zip(self._seats, ranks, strict=True):
            if seat.gone:
                self._bury(seat, attempt)
                continue
            seat.channel.send(
                RunTest(
                    nodeid=test.nodeid,
                    next_nodeid=following,
                    log=str(Path(self._order.results_dir) / progress.log),
                    scratch=str(scratch),
                    generation=generation,
                )
            )
        return attempt

    def _watch(self, attempt: Attempt) -> None:
        logs = [self._log(progress) for progress in attempt.ranks]
        grace_s = self._order.grace_s
        while not attempt.is_over:
            now_s = time.monotonic()
            if attempt.overdue(now_s, grace_s):
                self._end_living(attempt)
                break
            self._wait(min(_TICK_S, attempt.next_check_s(now_s, grace_s)))
            for log in logs:
                log.trim()

    def _log(self, progress: Progress) -> RankLog:
        return RankLog(Path(self._order.results_dir) / progress.log, limit=self._order.log_limit)

    def _end_living(self, attempt: Attempt) -> None:
        """Take the stacks of the ranks that are still at it, then end them."""
        living = attempt.living()
        seats = [self._seats[progress.rank] for progress in living]
        stacks = take_stacks([seat.stacks for seat in seats], limit_s=STACKS_LIMIT_S)
        self._drain(seats)  # a rank that finished just now is not a victim
        deadline_passed = attempt.failed_s is None and not attempt.cancelled
        for progress, text in zip(living, stacks, strict=True):
            if progress.is_over:
                continue
            progress.stacks = shorten_stacks(text)
            progress.killed = True
            progress.hung = deadline_passed
        victims = [progress for progress in living if progress.killed]
        end_all([self._seats[progress.rank].child for progress in victims], term_grace_s=TERM_GRACE_S)

    def _drain(self, seats: Sequence[Seat]) -> None:
        waiting = {seat.rank for seat in seats}
        for key, _ in self._selector.select(0):
            if any(key.fileobj is self._seats[rank].channel for rank in waiting):
                key.data()

    def _conclude(self, attempt: Attempt) -> bool:
        """Judge and report; whether the world may run another test."""
        for progress in attempt.ranks:
            if progress.stacks:
                heading = "at the deadline" if progress.hung else "when it was ended"
                self._log(progress).append(
                    f"\n{STACKS_HEADING}{progress.rank} {heading}]\n{progress.stacks}\n"
                )
            self._log(progress).finish()
        result = self._judge(attempt)
        self._controller.send(TestJudged(result=result, reports=_speaking_reports(attempt, result)))
        return self._is_healthy(attempt)

    def _judge(self, attempt: Attempt) -> TestResult:
        return judge(
            attempt.test,
            [progress.record(attempt.started_s) for progress in attempt.ranks],
            attempt=attempt.number,
            started_at_s=attempt.started_at_s,
            duration_s=time.monotonic() - attempt.started_s,
            world_id=self._order.world_id,
            cancelled=attempt.cancelled,
        )

    def _is_healthy(self, attempt: Attempt) -> bool:
        """A world that saw any failure is not used again; nor one that could not be cleaned."""
        if attempt.failed_s is not None or attempt.cancelled:
            return False
        return all(progress.done is not None and not progress.done.retire for progress in attempt.ranks)

    # --- what arrives

    def _wait(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            key.data()

    def _on_controller(self) -> None:
        messages = self._controller.receive()
        if self._controller.closed_by_peer:
            self._selector.unregister(self._controller)
            self._abandoned = True
            self._cancel("the controller is gone")
        for message in messages:
            if isinstance(message, Cancel):
                self._cancel(message.reason)

    def _cancel(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self._attempt is not None:
            self._attempt.cancelled = self._attempt.cancelled or reason

    def _on_channel(self, seat: Seat) -> None:
        try:
            messages = seat.channel.receive(wait=False)
        except ProtocolError as error:
            self._give_up(seat, f"it wrote nonsense into its control channel: {error}")
            return
        for message in messages:
            self._on_message(seat, message)
        if seat.channel.closed_by_peer:
            self._selector.unregister(seat.channel)
            # Usually its end; the pidfd says which. A rank that lives on without a channel is lost.
            if seat.child.wait(0.2) is None:
                self._give_up(seat, "it closed its control channel")

    def _on_message(self, seat: Seat, message: AnyMessage) -> None:
        if isinstance(message, RankReady):
            seat.ready = True
            return
        if self._attempt is None:
            return
        progress = self._attempt.ranks[seat.rank]
        match message:
            case PhaseBegan(phase=phase):
                progress.phase = phase
            case PhaseEnded():
                self._attempt.take_report(seat.rank, message)
            case TestDone():
                progress.done = message

    def _give_up(self, seat: Seat, why: str) -> None:
        seat.gone = True
        if seat.channel.fileno() in self._selector.get_map():
            self._selector.unregister(seat.channel)
        if self._attempt is not None:
            progress = self._attempt.ranks[seat.rank]
            progress.lost = progress.lost or why
            progress.died_at_s = time.monotonic()
            self._attempt.note_failure(progress.died_at_s)

    def _on_death(self, seat: Seat) -> None:
        now_s = time.monotonic()
        self._selector.unregister(seat.child)
        # What it said before it died counts. The channel may stay open in a grandchild: do not wait for its end.
        with contextlib.suppress(BlockingIOError):
            while seat.channel.fileno() in self._selector.get_map():
                self._on_channel(seat)
        seat.gone = True
        if self._attempt is not None:
            self._bury(seat, self._attempt, at_s=now_s)

    def _bury(self, seat: Seat, attempt: Attempt, *, at_s: float | None = None) -> None:
        progress = attempt.ranks[seat.rank]
        if progress.killed or progress.lost:
            return
        progress.death = seat.child.poll()
        progress.died_at_s = time.monotonic() if at_s is None else at_s
        progress.ready = seat.ready
        if not seat.ready:
            progress.start_log = RankLog(seat.spec.log, limit=self._order.log_limit).tail(_START_LOG_KEPT)
        attempt.note_failure(progress.died_at_s)

    # --- ending

    def _close(self) -> None:
        broken = self._attempt is None or not self._is_healthy(self._attempt)
        notes = self._dismiss(BROKEN_LEAVE_LIMIT_S if broken else LEAVE_LIMIT_S)
        self._judge_late_deaths()
        left = children_of() - {seat.child.pid for seat in self._seats}
        if left:
            notes.append(f"processes left by its ranks were killed: {_describe_processes(left)}")
        survivors = kill_descendants(spare=())
        if not self._abandoned:
            self._controller.send(WorldClosed(reason=self._reason, notes=tuple(notes), survivors=survivors))

    def _dismiss(self, limit_s: float) -> list[str]:
        """Let the living ranks leave by themselves, then end the rest."""
        living = [seat for seat in self._seats if seat.child.poll() is None]
        for seat in living:
            seat.channel.send(Leave())
        deadline = time.monotonic() + limit_s
        for seat in living:
            seat.child.wait(0.0 if self._abandoned else deadline - time.monotonic())
        stuck = [seat for seat in living if seat.child.poll() is None]
        notes = []
        if stuck and not self._reason:
            names = ",".join(str(seat.rank) for seat in stuck)
            notes.append(
                f"rank {names} did not leave within {limit_s:g} s after its last test and was killed"
            )
        end_all([seat.child for seat in stuck], term_grace_s=TERM_GRACE_S)
        self._stuck = {seat.rank for seat in stuck}
        return notes

    def _judge_late_deaths(self) -> None:
        """A rank that died after its test was judged good, by a signal or with a code, turns that test red."""
        attempt = self._attempt
        if attempt is None or attempt.failed_s is not None or attempt.cancelled or self._abandoned:
            return
        late = [seat for seat in self._seats if seat.rank not in self._stuck and _ended_badly(seat.child)]
        for seat in late:
            self._bury(seat, attempt)
        if late:
            self._controller.send(TestJudged(result=self._judge(attempt)))


def _ended_badly(child: Child) -> bool:
    ended = child.poll()
    return ended is not None and ended.code != 0


def _speaking_reports(attempt: Attempt, result: TestResult) -> tuple[str, ...]:
    """The pytest reports that stand for the test: the culprit's, else the first rank's that decided it."""
    ranks = attempt.ranks
    speaker = next(
        (p for p, r in zip(ranks, result.ranks, strict=True) if r.outcome is result.outcome), ranks[0]
    )
    if result.culprit is not None:
        speaker = ranks[result.culprit]
    return tuple(report.report for report in speaker.reports)


def _has_store() -> bool:
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available()


def _describe_processes(pids: set[int]) -> str:
    names = []
    for pid in sorted(pids)[:10]:
        try:
            process = psutil.Process(pid)
            names.append(f"{pid} ({' '.join(process.cmdline())[:60] or process.name()})")
        except psutil.NoSuchProcess:
            continue
    return ", ".join(names)
