"""Supervision of ranks: receive their messages, notice their deaths, end those that must be ended.

This is the only loop of its kind. A world supervises its ranks with it; the main process of a test that starts ranks
supervises those.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from disttest.clock import monotonic
from disttest.errors import PluginError, ProtocolError
from disttest.host.event_loop import EventLoop, wait_any
from disttest.host.oom import count_oom_kills, describe_oom, own_cgroups
from disttest.host.process import Child, end_all
from disttest.limits import EVIDENCE_S, RANK_EXIT_S, RANK_TERM_S, RENDERING_S, TICK_S
from disttest.options.run import WorldSettings
from disttest.outgoing import outgoing
from disttest.plugin_manager import blaming, plugin_manager
from disttest.results.directory import Home
from disttest.results.narrative import crash_stacks, shorten_stacks
from disttest.runtime.messages.collected import describe_difference, describe_extra
from disttest.runtime.messages.protocol import (
    AnyMessage,
    Channel,
    Collected,
    PhaseEnded,
    RankReady,
    RanksJoined,
)
from disttest.runtime.world.attempt import Attempt, RankProgress
from disttest.runtime.world.evidence import STACKS_HEADING, EvidenceSource, RankEvidence, collect_evidence
from disttest.runtime.world.logs import LogStore, RankLog, RankLogs
from disttest.runtime.world.rank_watch import RankWatch
from disttest.runtime.world.stacks import NATIVE_HEADING, native_stacks, with_code

T = TypeVar("T")

_START_LOG_KEPT = 16 * 1024
_LAST_WORDS_KEPT = 500
# Characters of the end of a log that are searched for the stacks of a crash; many threads make them long.
_CRASH_KEPT = 64 * 1024
# libstdc++ prints `terminate called after throwing an instance of 'gloo::IoException'`, and the text behind
# `what():` on the next line.
_UNCAUGHT = re.compile(r"terminate called after throwing an instance of '([^']+)'\s+what\(\):\s*(.+)")


@dataclass(kw_only=True)
class RankProcessHandle:
    """A rank as its supervisor sees it."""

    rank: int
    channel: Channel
    child: Child
    evidence: EvidenceSource
    log: Path
    """The log until the first test names another file."""
    phase: Callable[[], str] = lambda: "call"
    """Returns the phase of the test; ranks of adapted classes have only one."""
    xfail: Callable[[], bool] = lambda: False
    """Returns whether the test is marked as an expected failure in its current phase."""
    xfail_by_assertion: Callable[[], bool] = lambda: False
    """Returns whether the mark covers a failed assertion."""
    held: Callable[[], bool] = lambda: False
    """Returns whether the rank is being debugged."""
    ready: bool = False
    gone: bool = False
    collected: Mapping[str, str] | None = None
    """Node id -> parameters in a rank that collected the tests; None for a fork of its world."""


class Supervisor:
    """Supervises the ranks of one world while they run attempts."""

    def __init__(self, home: Home, settings: WorldSettings) -> None:
        self.handles: list[RankProcessHandle] = []
        self.attempt: Attempt | None = None
        self._settings = settings
        self.logs = LogStore(home, limit=settings.log_limit)
        # Out-of-memory kills counted in the memory cgroup of disttest when the running attempt began.
        self._oom_kills = 0
        self.loop = EventLoop()
        self.on_evidence: Callable[[], None] = lambda: None
        """Called at a deadline after the evidence is collected and before any rank is ended."""
        self.on_new_start: Callable[[Attempt], None] = lambda _: None
        """Called when a main process starts new ranks, which replace the earlier ones in the verdict."""
        # Plugin name -> its watch over the ranks.
        self._watches: dict[str, RankWatch] = {}
        self.on_tick: Callable[[], None] = lambda: None
        """Called every :data:`TICK_S` seconds during a test, for events that do not wake the loop."""

    def close(self) -> None:
        """Close all descriptors; the ranks must have ended."""
        self.loop.close()
        for handle in self.handles:
            handle.channel.close()
            handle.child.close()
        for watch in self._watches.values():
            watch.close()
        self.logs.close()

    def handle(self, rank: int) -> RankProcessHandle:
        """Look up a rank. Ranks are consecutive; on a node of a spanning world they need not begin at 0."""
        return self.handles[rank - self.handles[0].rank]

    def evidence(self) -> dict[int, EvidenceSource]:
        """Map each rank to the source of its evidence."""
        return {handle.rank: handle.evidence for handle in self.handles}

    def start_watches(self, size: int) -> dict[str, Any]:
        """Have plugins watch the ranks; call it before the ranks are started.

        Args:
            size: number of ranks.

        Returns:
            Plugin name -> data for its part in each rank.

        Raises:
            PluginError: a plugin failed.
        """
        plugins = plugin_manager()
        self._watches = plugins.named(
            "disttest_watch_ranks", RankWatch, settings=self._settings, size=size, evidence=self.evidence
        )
        return {name: watch.for_ranks for name, watch in self._watches.items()}

    # --- what is watched

    def add(self, handle: RankProcessHandle) -> None:
        """Supervise one more rank."""
        self.handles.append(handle)
        self.loop.watch(handle.channel, lambda: self._on_channel(handle))
        self.loop.watch(handle.child, lambda: self._on_death(handle))

    # --- an attempt

    def begin(self, attempt: Attempt) -> None:
        """Assign all further messages and deaths of the ranks to this attempt."""
        self.attempt = attempt
        # SIGKILL does not name its sender. The cgroup's counter shows whether it was the out-of-memory killer.
        self._oom_kills = count_oom_kills(own_cgroups())
        for name, watch in self._watches.items():
            _asked(attempt, name, watch.begin)
        for handle in self.handles:
            # A rank that died between two tests fails the one that it would have run. The loop reports its
            # end only once.
            if handle.gone:
                self.record_exit(handle, attempt)

    def watch(self, attempt: Attempt) -> None:
        """Return when every rank is done, dead or ended."""
        logs = RankLogs([self._log(progress) for progress in attempt.ranks])
        tick_s = monotonic() + TICK_S
        while not attempt.is_over:
            now_s = monotonic()
            # Before the limits below are checked, because it moves them.
            attempt.hold(now_s, on=self._is_held(attempt))
            # Rendering runs `repr()` of the test's objects, which may block or wait for a peer forever.
            attempt.give_up_rendering(older_than_s=RENDERING_S)
            if attempt.overdue(now_s, self._settings.grace):
                self.end_living(attempt)
                break
            self.loop.wait(min(TICK_S, attempt.next_check_s(now_s, self._settings.grace)))
            self._look(attempt)
            if now_s >= tick_s:
                tick_s = now_s + TICK_S
                self.on_tick()
                logs.trim()
        attempt.give_up_waiting()
        for progress in attempt.ranks:
            progress.xfail = self.handle(progress.rank).xfail()

    def _look(self, attempt: Attempt) -> None:
        """Ask the watches of plugins whether the ranks can make progress; the first cause found is kept."""
        for name, watch in self._watches.items():
            if attempt.cause is None:
                attempt.cause = _asked(attempt, name, partial(watch.look, attempt))

    def _is_held(self, attempt: Attempt) -> bool:
        """Whether an unfinished rank is being debugged.

        Other runs ignore the flag: it is a byte in shared memory, and a broken rank could suspend the limits.
        """
        return self._settings.is_debugged and any(
            self.handle(progress.rank).held() for progress in attempt.living()
        )

    def end_living(self, attempt: Attempt) -> None:
        """Take the evidence of the unfinished ranks, then end them."""
        # A failure that is known only in part counts from here on. It decides whether the deadline or that
        # failure ends the others.
        attempt.give_up_rendering()
        attempt.give_up_waiting()
        # After a failure the grace period ends ranks, not the deadline, and they did not hang.
        deadline_passed = attempt.failed_s is None and not attempt.cancelled
        # At the deadline, record the ends of the ranks before asking. The signal interrupts waiting calls for good:
        # pause, sleep and poll return EINTR and never restart (signal(7)). A report after that would show a pass
        # that the test did not reach.
        living = self._note_ends(attempt) if deadline_passed else attempt.living()
        finished = self._finished(attempt) if deadline_passed else []
        evidence = self._question([*living, *finished])
        for progress in finished:
            progress.collectives = evidence[progress.rank].collectives
        if deadline_passed:
            self.on_evidence()
        self._take_in_flight(attempt, living, evidence)
        # After a failure, reports that arrived during the questions still count.
        if not deadline_passed:
            living = self._note_ends(attempt)
        # The answers may contain an assertion in flight, which is a failure of the test and no hang.
        deadline_passed = deadline_passed and attempt.failed_s is None
        for progress in living:
            told = evidence[progress.rank]
            progress.stacks = outgoing.text(with_code(shorten_stacks(told.stacks)))
            progress.process_state = told.process_state
            progress.collectives = told.collectives
            ends = deadline_passed and attempt.cause is not None and attempt.cause.ends
            progress.ended_for = attempt.cause if ends else None
            progress.hung = deadline_passed and not (progress.ended_for and progress.ended_for.is_expected)
        if self._settings.native_stacks and deadline_passed:
            self._take_native_stacks(living)
        # All at the same time: ended one by one, a rank would report the lost connection to the one before.
        end_all([self.handle(progress.rank).child for progress in living], term_grace_s=RANK_TERM_S)

    def _note_ends(self, attempt: Attempt) -> list[RankProgress]:
        """Record the end of each unfinished rank; one that finished or died just now is not a victim."""
        self._drain(attempt)
        living = [p for p in attempt.living() if not self._has_died(self.handle(p.rank))]
        for progress in living:
            self.note_end(progress)
        return living

    @staticmethod
    def _finished(attempt: Attempt) -> list[RankProgress]:
        """List the ranks that finished; one may have made the call in which the others wait, with another tensor."""
        over = (progress for progress in attempt.ranks if progress.is_over and not progress.killed)
        return [progress for progress in over if progress.death is None and not progress.lost]

    def _question(self, asked_of: Sequence[RankProgress]) -> dict[int, RankEvidence]:
        asked = [(self.handle(progress.rank).evidence, self._flight(progress)) for progress in asked_of]
        told = collect_evidence(asked, limit_s=EVIDENCE_S)
        return {progress.rank: each for progress, each in zip(asked_of, told, strict=True)}

    def _take_in_flight(
        self, attempt: Attempt, asked: Sequence[RankProgress], evidence: Mapping[int, RankEvidence]
    ) -> None:
        """Record the exceptions that ranks were handling, except for ranks that have finished meanwhile."""
        self._drain(attempt)
        for progress in asked:
            told = evidence[progress.rank].in_flight
            if told is not None and (progress.killed or not progress.is_over):
                handle = self.handle(progress.rank)
                # The question may have ended a wait: the rank may be in its tear-down by now.
                phase = progress.phase if progress.killed else handle.phase()
                attempt.take_in_flight(progress.rank, told, phase=phase, xfail=handle.xfail_by_assertion())

    def note_end(self, progress: RankProgress) -> None:
        """Record the phase of a rank that disttest is about to end, before the rank continues into its clean-up."""
        handle = self.handle(progress.rank)
        collects = self._settings.ranks_collect and not handle.ready
        # Such a rank runs no test yet, and its byte on the board says "setup" from the start.
        progress.phase = "collection" if collects else handle.phase()
        progress.killed = True

    def _has_died(self, handle: RankProcessHandle) -> bool:
        """Whether the process has ended already; its death is recorded then."""
        if handle.child.poll() is None:
            return False
        self._on_death(handle)
        return True

    def _take_native_stacks(self, victims: Sequence[RankProgress]) -> None:
        told = native_stacks([self.handle(progress.rank).child for progress in victims])
        for progress, text in zip(victims, told, strict=True):
            progress.native = outgoing.text(text)

    def close_logs(self, attempt: Attempt) -> None:
        """Append the stacks to the logs, and shorten the logs that exceed the limit."""
        for progress in attempt.ranks:
            log = self._log(progress)
            # With a cause, the rank was ended before its deadline.
            at_deadline = progress.hung and progress.ended_for is None
            heading = "at the deadline" if at_deadline else "when it was ended"
            if progress.stacks:
                log.append(f"\n{STACKS_HEADING}{progress.rank} {heading}]\n{progress.stacks}\n")
            if progress.native:
                log.append(f"\n{NATIVE_HEADING}{progress.rank} {heading}]\n{progress.native}\n")
            self.logs.finish(progress.log)

    def record_exit(self, handle: RankProcessHandle, attempt: Attempt, *, at_s: float | None = None) -> None:
        """Record a death in the attempt, unless disttest caused it or it has an explanation already."""
        progress = attempt.of(handle.rank)
        if progress.killed or progress.lost:
            return
        progress.death = handle.child.poll()
        progress.died_at_s = monotonic() if at_s is None else at_s
        progress.phase = handle.phase()
        progress.ready = handle.ready
        if not handle.ready:
            progress.start_log = RankLog(handle.log, limit=self._settings.log_limit).tail(_START_LOG_KEPT)
        progress.last_words = self._last_words(progress, attempt)
        if progress.death and progress.death.signal is not None:
            self.read_crash(progress)
        attempt.note_death(progress)

    def read_crash(self, progress: RankProgress) -> None:
        """Read the stacks that faulthandler wrote into the rank's log when a fatal signal ended the process."""
        stacks = crash_stacks(self._log(progress).tail(_CRASH_KEPT))
        progress.crash = outgoing.text(with_code(stacks))

    def _last_words(self, progress: RankProgress, attempt: Attempt) -> str:
        """Explain why a rank was killed, from the kernel, its log or the watch of a plugin."""
        killer = progress.death.signal if progress.death else None
        if killer == signal.SIGKILL:
            # A kill by the kernel and one by a test or a user look the same in the exit status.
            struck = count_oom_kills(own_cgroups()) > self._oom_kills
            return describe_oom(own_cgroups()) if struck else ""
        # gloo crashes with SIGSEGV in some calls that bring more than there is room for, such as a broadcast of 7 numbers
        # into 6.
        if killer not in (signal.SIGABRT, signal.SIGSEGV):
            return ""
        # libstdc++ prints the exception to stderr, which is the rank's log, before it calls abort(). Then faulthandler
        # reads the frames of other threads, which run on, and may crash itself: the process ends with SIGSEGV.
        uncaught = _UNCAUGHT.search(self._log(progress).tail(_START_LOG_KEPT))
        words = f"{uncaught[1]}: {uncaught[2]}"[:_LAST_WORDS_KEPT] if uncaught else ""
        return self._explain_abort(progress, attempt, words) or words

    def _explain_abort(self, progress: RankProgress, attempt: Attempt, words: str) -> str:
        for name, watch in self._watches.items():
            question = partial(watch.explain_abort, attempt, progress.rank, words)
            found, because_of = _asked(attempt, name, question) or ("", ())
            if found or because_of:
                progress.differing_calls, progress.because_of = found, because_of
                return found
        return ""

    def _flight(self, progress: RankProgress) -> Path:
        return self.logs.place(progress.log).with_name(f"rank{progress.rank}.collectives.json")

    def _log(self, progress: RankProgress) -> RankLog:
        return self.logs.log(progress.log)

    def _drain(self, attempt: Attempt) -> None:
        """Handle the messages that the unfinished ranks have sent, and no other event."""
        for handle in [self.handle(progress.rank) for progress in attempt.living()]:
            if handle.channel in self.loop and wait_any(handle.channel, timeout_s=0):
                self._on_channel(handle)

    # --- what arrives

    def _on_channel(self, handle: RankProcessHandle) -> None:
        try:
            messages = handle.channel.receive(wait=False)
        except ProtocolError as error:
            # A test may write into any descriptor of its process, this channel included.
            self.give_up(handle, f"it sent a malformed message: {error}")
            return
        for message in messages:
            self._on_message(handle, message)
        if handle.channel.closed_by_peer:
            self.loop.ignore(handle.channel)
            # Usually the process has ended, and its pidfd says how. A rank that lives on without a channel is lost.
            if not self._is_leaving(handle) and handle.child.wait(RANK_EXIT_S) is None:
                self.give_up(handle, "it closed its control channel")

    def _is_leaving(self, handle: RankProcessHandle) -> bool:
        done = self.attempt.of(handle.rank).done if self.attempt else None
        return done is not None and done.exit_code is not None and not done.stays

    def _on_message(self, handle: RankProcessHandle, message: AnyMessage) -> None:
        if isinstance(message, RankReady):
            handle.ready = True
            return
        if isinstance(message, Collected):
            handle.collected = message.tests
            return
        if self.attempt is None:
            return
        progress = self.attempt.of(handle.rank)
        match message:
            case PhaseEnded():
                report = _within(message, self.attempt.started_s)
                self.attempt.take_report(handle.rank, report, marked=handle.xfail())
            case RanksJoined():
                progress.joined.append(message)
                if message.superseded:
                    self.on_new_start(self.attempt)
            case _:
                progress.take(message)

    def receive_last(self) -> None:
        """Handle the messages of ranks that have ended."""
        for handle in self.handles:
            while handle.channel in self.loop and wait_any(handle.channel, timeout_s=0):
                self._on_channel(handle)

    def agree_on(self, nodeid: str) -> bool:
        """Check that ranks which collected separately have the same test under this id; give up those that differ."""
        own = [handle for handle in self.handles if handle.collected is not None and not handle.gone]
        for handle in own:
            first, mine = own[0].collected or {}, handle.collected or {}
            words = describe_difference(nodeid, mine, first, f"rank {own[0].rank}")
            # A test that only one rank has collected is never run.
            if self._settings.ranks_collect:
                words = words or describe_extra(mine, first, f"rank {own[0].rank}")
            if words:
                self.give_up(handle, words)
        return not any(handle.gone for handle in own)

    def give_up(self, handle: RankProcessHandle, why: str) -> None:
        """Stop trusting a rank; its behaviour is the failure of the running test."""
        handle.gone = True
        self.loop.ignore(handle.channel)
        if self.attempt is not None:
            progress = self.attempt.of(handle.rank)
            progress.phase = handle.phase()
            progress.lost = progress.lost or why
            progress.died_at_s = monotonic()
            self.attempt.note_failure(progress.died_at_s)

    def _on_death(self, handle: RankProcessHandle) -> None:
        now_s = monotonic()
        # The pidfd of a dead process stays readable, and would wake the loop without end.
        self.loop.ignore(handle.child)
        # Messages sent before the death count. A grandchild may hold the channel open, so do not wait for its end.
        with contextlib.suppress(BlockingIOError):
            while handle.channel in self.loop:
                self._on_channel(handle)
        handle.gone = True
        if self.attempt is not None:
            self.record_exit(handle, self.attempt, at_s=now_s)


def _asked(attempt: Attempt, plugin: str, question: Callable[[], T]) -> T | None:
    """Call the watch of a plugin; if it fails, record an error of the attempt, which outweighs any verdict."""
    try:
        with blaming(plugin, "disttest_watch_ranks"):
            return question()
    except PluginError as error:
        attempt.plugin_error = attempt.plugin_error or f"{error}\n{error.trace}"
        return None


def _within(report: PhaseEnded, started_s: float) -> PhaseEnded:
    """Move the report's time into the attempt: a test can change the clock of its rank."""
    at_s = min(max(report.ended_at_s, started_s), monotonic())
    return report if at_s == report.ended_at_s else msgspec.structs.replace(report, ended_at_s=at_s)
