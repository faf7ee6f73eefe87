"""The supervision of ranks: hears them, notices their deaths, and ends what has to be ended.

The one loop of its kind: a world supervises its ranks with it, and the main process of a test that starts
ranks by itself (see ``hosting``) supervises those.
"""

from __future__ import annotations

import contextlib
import re
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from disttest.errors import ProtocolError
from disttest.host.oom import count_oom_kills, describe_oom, own_cgroups
from disttest.host.process import Child, end_all
from disttest.masking import masker
from disttest.results.narrative import shorten_stacks
from disttest.running.attempt import Attempt, Progress
from disttest.running.evidence import STACKS_HEADING, EvidenceSource, question
from disttest.running.logs import LogRoom, RankLog
from disttest.running.native import NATIVE_HEADING, native_stacks
from disttest.running.protocol import (
    AnyMessage,
    Channel,
    PhaseEnded,
    RankReady,
    RanksJoined,
    TestDone,
)

TERM_GRACE_S = 0.1
"""A rank that is ended gets this long between TERM and KILL."""
EVIDENCE_LIMIT_S = 0.6
"""How long ranks may take to tell what they were doing; most need a few milliseconds, some can not answer."""
_START_LOG_KEPT = 16 * 1024
_LAST_WORDS_KEPT = 500
_UNCAUGHT = re.compile(r"terminate called after throwing an instance of '([^']+)'\s+what\(\):\s*(.+)")
_EXIT_LIMIT_S = 2.0
"""From the end of its channel to the end of a process; a loaded machine needs a while to free the memory."""
_TRIM_S = 0.2
"""How often log sizes are looked at while a test runs."""


class HasFileno(Protocol):
    """Something that can be waited for."""

    def fileno(self) -> int:
        """Its descriptor."""


@dataclass(kw_only=True)
class Seat:
    """A rank as its supervisor holds it."""

    rank: int
    channel: Channel
    child: Child
    evidence: EvidenceSource
    log: Path
    """Where it writes until its first test names another file."""
    phase: Callable[[], str] = lambda: "call"
    """In which phase of the test it is; hosted ranks know but one."""
    ready: bool = False
    gone: bool = False


class Supervisor:
    """Watches over the ranks of one world while they run attempts."""

    def __init__(self, *, results: Path, log_limit: int, grace_s: float, native: bool = False) -> None:
        self.seats: list[Seat] = []
        self.attempt: Attempt | None = None
        self._results = results
        self._log_limit = log_limit
        self.logs = LogRoom(results, limit=log_limit)
        self._grace_s = grace_s
        self._native = native
        self._oom_kills = 0
        """Of our memory cgroup, when the running attempt began."""
        self._selector = selectors.DefaultSelector()
        self.on_evidence: Callable[[], None] = lambda: None
        """Called at a deadline, when the evidence has been taken and nobody has been ended yet."""

    def close(self) -> None:
        """Give back every descriptor; the ranks must be gone."""
        self._selector.close()
        for seat in self.seats:
            seat.channel.close()
            seat.child.close()
        self.logs.close()

    def seat(self, rank: int) -> Seat:
        """The seat of a rank; ranks are consecutive, and begin at 0 unless the world spans nodes."""
        return self.seats[rank - self.seats[0].rank]

    # --- what is watched

    def add(self, seat: Seat) -> None:
        """Watch over one more rank."""
        self.seats.append(seat)
        self.watch_also(seat.channel, lambda: self._on_channel(seat))
        self.watch_also(seat.child, lambda: self._on_death(seat))

    def watch_also(self, line: HasFileno, on_readable: Callable[[], None]) -> None:
        """Wait for another descriptor in the same loop."""
        self._selector.register(line, selectors.EVENT_READ, on_readable)

    def ignore(self, line: HasFileno) -> None:
        """Stop waiting for a descriptor; fine if nobody waits for it."""
        if line.fileno() in self._selector.get_map():
            self._selector.unregister(line)

    def wait(self, timeout_s: float) -> None:
        """Handle what happens, for at most that long."""
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            # A callback may have buried a rank whose other descriptor is in the same batch.
            if key.fd in self._selector.get_map():
                key.data()

    # --- an attempt

    def begin(self, attempt: Attempt) -> None:
        """From here on, what ranks say and do belongs to this attempt."""
        self.attempt = attempt
        self._oom_kills = count_oom_kills(own_cgroups())
        for seat in self.seats:
            if seat.gone:
                self.bury(seat, attempt)

    def watch(self, attempt: Attempt) -> None:
        """Return when every rank is done, dead or ended."""
        logs = [self._log(progress) for progress in attempt.ranks]
        trim_s = time.monotonic() + _TRIM_S
        while not attempt.is_over:
            now_s = time.monotonic()
            if attempt.overdue(now_s, self._grace_s):
                self.end_living(attempt)
                break
            self.wait(min(_TRIM_S, attempt.next_check_s(now_s, self._grace_s)))
            if now_s >= trim_s:
                trim_s = now_s + _TRIM_S
                for log in logs:
                    log.trim()

    def end_living(self, attempt: Attempt) -> None:
        """Take the stacks of the ranks that are still at it, then end them."""
        living = attempt.living()
        seats = [self.seat(progress.rank) for progress in living]
        deadline_passed = attempt.failed_s is None and not attempt.cancelled
        told = question(
            [(seat.evidence, self._flight(progress)) for seat, progress in zip(seats, living, strict=True)],
            limit_s=EVIDENCE_LIMIT_S,
        )
        if deadline_passed:
            self.on_evidence()
        self._drain(seats)  # a rank that finished just now is not a victim
        for progress, testimony in zip(living, told, strict=True):
            if progress.is_over:
                continue
            progress.phase = self.seat(progress.rank).phase()
            progress.stacks = shorten_stacks(testimony.stacks)
            progress.collectives = testimony.collectives
            progress.killed = True
            progress.hung = deadline_passed
        victims = [progress for progress in living if progress.killed]
        if self._native and deadline_passed:
            self._take_native_stacks(victims)
        end_all([self.seat(progress.rank).child for progress in victims], term_grace_s=TERM_GRACE_S)

    def _take_native_stacks(self, victims: Sequence[Progress]) -> None:
        told = native_stacks([self.seat(progress.rank).child for progress in victims])
        for progress, text in zip(victims, told, strict=True):
            progress.native = masker.text(text)

    def close_logs(self, attempt: Attempt) -> None:
        """Add the stacks that were taken to the logs, and cut those that are too long."""
        for progress in attempt.ranks:
            log = self._log(progress)
            if progress.stacks:
                heading = "at the deadline" if progress.hung else "when it was ended"
                log.append(f"\n{STACKS_HEADING}{progress.rank} {heading}]\n{progress.stacks}\n")
            if progress.native:
                log.append(f"\n{NATIVE_HEADING}{progress.rank} at the deadline]\n{progress.native}\n")
            self.logs.finish(progress.log)

    def bury(self, seat: Seat, attempt: Attempt, *, at_s: float | None = None) -> None:
        """Write a death into the attempt, unless it was our doing or is explained already."""
        progress = attempt.of(seat.rank)
        if progress.killed or progress.lost:
            return
        progress.death = seat.child.poll()
        progress.died_at_s = time.monotonic() if at_s is None else at_s
        progress.phase = seat.phase()
        progress.ready = seat.ready
        if not seat.ready:
            progress.start_log = RankLog(seat.log, limit=self._log_limit).tail(_START_LOG_KEPT)
        progress.last_words = self._last_words(progress)
        attempt.note_death(progress)

    def _last_words(self, progress: Progress) -> str:
        """Why a rank was killed, as far as the kernel or its log tells."""
        killer = progress.death.signal if progress.death else None
        if killer == signal.SIGKILL:
            struck = count_oom_kills(own_cgroups()) > self._oom_kills
            return describe_oom(own_cgroups()) if struck else ""
        if killer == signal.SIGABRT:
            uncaught = _UNCAUGHT.search(self._log(progress).tail(_START_LOG_KEPT))
            return f"{uncaught[1]}: {uncaught[2]}"[:_LAST_WORDS_KEPT] if uncaught else ""
        return ""

    def _flight(self, progress: Progress) -> Path:
        return (self._results / progress.log).with_name(f"rank{progress.rank}.collectives.json")

    def _log(self, progress: Progress) -> RankLog:
        return self.logs.log(progress.log)

    def _drain(self, seats: Sequence[Seat]) -> None:
        waiting = {seat.rank for seat in seats}
        for key, _ in self._selector.select(0):
            if any(key.fileobj is self.seat(rank).channel for rank in waiting):
                key.data()

    # --- what arrives

    def _on_channel(self, seat: Seat) -> None:
        try:
            messages = seat.channel.receive(wait=False)
        except ProtocolError as error:
            self.give_up(seat, f"it wrote nonsense into its control channel: {error}")
            return
        for message in messages:
            self._on_message(seat, message)
        if seat.channel.closed_by_peer:
            self.ignore(seat.channel)
            # Usually its end; the pidfd says which. A rank that lives on without a channel is lost.
            if not self._is_leaving(seat) and seat.child.wait(_EXIT_LIMIT_S) is None:
                self.give_up(seat, "it closed its control channel")

    def _is_leaving(self, seat: Seat) -> bool:
        done = self.attempt.of(seat.rank).done if self.attempt else None
        return done is not None and done.exit_code is not None

    def _on_message(self, seat: Seat, message: AnyMessage) -> None:
        if isinstance(message, RankReady):
            seat.ready = True
            return
        if self.attempt is None:
            return
        progress = self.attempt.of(seat.rank)
        match message:
            case PhaseEnded():
                self.attempt.take_report(seat.rank, _within(message, self.attempt.started_s))
            case RanksJoined():
                progress.joined.append(message)
            case TestDone():
                progress.done = message

    def give_up(self, seat: Seat, why: str) -> None:
        """Trust a rank no more: what it did is the failure of the running test."""
        seat.gone = True
        self.ignore(seat.channel)
        if self.attempt is not None:
            progress = self.attempt.of(seat.rank)
            progress.phase = seat.phase()
            progress.lost = progress.lost or why
            progress.died_at_s = time.monotonic()
            self.attempt.note_failure(progress.died_at_s)

    def _on_death(self, seat: Seat) -> None:
        now_s = time.monotonic()
        self.ignore(seat.child)
        # What it said before it died counts. A grandchild may hold the channel open: do not wait for its end.
        with contextlib.suppress(BlockingIOError):
            while seat.channel.fileno() in self._selector.get_map():
                self._on_channel(seat)
        seat.gone = True
        if self.attempt is not None:
            self.bury(seat, self.attempt, at_s=now_s)


def _within(report: PhaseEnded, started_s: float) -> PhaseEnded:
    """The report with its time inside the attempt: the clock of a rank is in the hands of its test."""
    at_s = min(max(report.ended_at_s, started_s), time.monotonic())
    return report if at_s == report.ended_at_s else msgspec.structs.replace(report, ended_at_s=at_s)
