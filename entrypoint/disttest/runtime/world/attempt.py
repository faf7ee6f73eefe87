"""One attempt of a test as its world sees it: what each rank has said so far, and when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from disttest.clock import monotonic
from disttest.host.process import Exit, signal_name
from disttest.limits import CONSEQUENCE_WAIT_S, MAIN_CANCEL_S, MAIN_MARGIN_S, NO_LIMIT_S
from disttest.model import (
    Collective,
    HangCause,
    Outcome,
    RankEnd,
    RankRecord,
    Recorded,
    TestCase,
    WorldKind,
)
from disttest.plugin_manager import plugin_manager
from disttest.results.rulings import STRICT_XPASS
from disttest.results.verdict import is_consequence
from disttest.runtime.messages.protocol import PhaseEnded, Raised, RanksJoined, RunStop, TestDone
from disttest.runtime.messages.raised import failed_outcome

# Characters of the reports of one rank's subtests; of those beyond it only outcome and message are kept.
_SUBTESTS_KEPT = 8 * 1024 * 1024
# Which of the reports of a rank's phases speaks for it when none of them is bad.
_PRECEDENCE = (Outcome.XFAILED, Outcome.SKIPPED, Outcome.XPASSED, Outcome.PASSED)
_LEFT_OUT = (Outcome.SKIPPED, Outcome.XFAILED)


def _is_bad(report: PhaseEnded) -> bool:
    return report.outcome.is_bad


def _is_strict(report: PhaseEnded) -> bool:
    return report.outcome is Outcome.XPASSED and report.message.startswith(STRICT_XPASS)


def _skips_too_late(report: PhaseEnded) -> bool:
    """Whether a tear-down skips, which does not undo what the call has shown."""
    return report.outcome is Outcome.SKIPPED and report.phase == "teardown"


@dataclass(kw_only=True)
class RankProgress:
    """What one rank has done in the running attempt."""

    rank: int
    pid: int
    log: str
    ready: bool = True
    """Whether it ever came up."""
    start_log: str = ""
    """What a rank that never came up had printed."""
    phase: str = "setup"
    reports: list[PhaseEnded] = field(default_factory=list)
    rendering: PhaseEnded | None = None
    """The failure of a phase, as far as it is known before its report has arrived."""
    rendering_since_s: float = 0.0
    because_of: tuple[int, ...] = ()
    """The ranks that had not joined the call in which it failed, or the one that called something else."""
    in_flight: Raised | None = None
    """The exception that was on its way when the rank was ended."""
    joined: list[RanksJoined] = field(default_factory=list)
    """What became of ranks that this process started by itself."""
    recorded: Recorded = field(default_factory=Recorded)
    """Warnings and facts that the test recorded."""
    done: TestDone | None = None
    noted: dict[str, msgspec.Raw] = field(default_factory=dict)
    """Name of a plugin -> what its part in the rank has sent while the test ran."""
    death: Exit | None = None
    died_at_s: float = 0.0
    last_words: str = ""
    """What is known of the reason of its death: an uncaught exception of C++, memory that ran out."""
    lost: str = ""
    """Why its channel cannot be trusted any more."""
    killed: bool = False
    hung: bool = False
    ended_for: HangCause | None = None
    """The reason for which it was ended before the limit of the test: no rank could go on."""
    stacks: str = ""
    below: str = ""
    """Of a contained test: the processes that it had started, and their stacks."""
    deaths_below: str = ""
    """Which of those have died, while nobody waited for them."""
    native: str = ""
    """Its C frames, where they were asked for; they go into its log only."""
    crash: str = ""
    """The stacks that it has written into its log while a signal ended it."""
    collectives: tuple[Collective, ...] = ()
    xfail: bool = False
    """Whether the test was marked as an expected failure in its last phase."""

    size: int = 0
    """Characters in its reports."""

    def take_report(self, report: PhaseEnded) -> None:
        """Keep a report, but not the texts of more subtests than a message can carry."""
        if report.unrendered:
            self.rendering, self.rendering_since_s = report, monotonic()
            self.because_of = report.because_of
            self.in_flight = report.held_back
            return
        self.rendering = None
        self.size += len(report.report) + len(report.details)
        if report.partial and self.size > _SUBTESTS_KEPT:
            report = msgspec.structs.replace(report, report="", details="")
        self.reports.append(report)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come from this rank."""
        finished = self.done is not None and (self.done.exit_code is None or self.done.stays)
        return finished or self.death is not None or bool(self.lost) or self.killed

    @property
    def died(self) -> bool:
        """Whether its process ended, or its channel broke, without our doing."""
        return not self.killed and not self.left_as_announced and (self.death is not None or bool(self.lost))

    @property
    def left_as_announced(self) -> bool:
        """Whether its process ended the way it said it would; of one that stayed, how it ends later says nothing."""
        if self.done is None or self.done.exit_code is None:
            return False
        return self.done.stays or (self.death is not None and self.death.code == self.done.exit_code)

    @property
    def verdict_report(self) -> PhaseEnded | None:
        """The report that speaks for this rank: the first bad one, else the most telling one; None without a call."""
        reports = [*self.reports, *filter(None, [self.rendering])]
        for decides in (_is_bad, _is_strict):
            for report in reports:
                if decides(report):
                    return report
        whole = [report for report in reports if not report.partial and not _skips_too_late(report)]
        for outcome in _PRECEDENCE:
            for report in whole:
                if report.outcome is outcome and (outcome is not Outcome.PASSED or report.phase == "call"):
                    return report
        return None

    @property
    def may_run_another(self) -> bool:
        """Whether its process is as it was before the test."""
        return self.done is not None and not self.done.retire and not self.done.broken

    def record(self, started_at_s: float) -> RankRecord:
        """This rank's part of the attempt; times are on the monotonic clock."""
        report = self.verdict_report
        has_failed = report is not None and report.outcome.is_bad
        was_cut = self.killed and report is not None and report.outcome.is_final
        reported = self.done is not None or was_cut or (self.died and has_failed)
        message = report.message if report else ""
        failed_at_s = report.ended_at_s if report and has_failed else None
        if self.died and has_failed:  # what it said of the failure is the reason, its death comes of it
            message = f"{message}; then it {self._exit_reason()}"
        elif self.died:
            message, failed_at_s = self._exit_reason(), self.died_at_s
        elif self.killed and not (report and report.outcome.is_final):
            message = "was ended by disttest"
        if self.ended_for is not None:
            message = self.ended_for.of_rank
        stayed = self.done if self.done and self.done.stays else None
        ended = None if stayed else self.death
        return RankRecord(
            rank=self.rank,
            end=self._end(),
            outcome=self._outcome(report, reported=reported),
            phase=report.phase
            if report and (has_failed or ((report.outcome.is_final or self.done) and not self.died))
            else self.phase,
            message=message,
            details=self._details(report),
            stacks="\n\n".join(filter(None, (self.stacks, self.crash, self.below))),
            collectives=self.collectives,
            unrendered=self.rendering is not None and report is self.rendering,
            because_of=self.because_of,
            in_flight=self._tell_in_flight(report),
            failed_after_s=None if failed_at_s is None else max(0.0, failed_at_s - started_at_s),
            exit_code=stayed.exit_code if stayed else ended.code if ended else None,
            signal=ended.signal if ended else None,
            hung=self.hung,
            ended_for=self.ended_for.name if self.ended_for is not None else "",
            pid=self.pid,
            log=self.log,
            xfail=self.xfail,
            subtests_skipped=sum(r.partial and r.outcome in _LEFT_OUT for r in self.reports),
            leaks=self.done.leaks if self.done else (),
            recorded=self.recorded,
            durations_s={r.phase: r.duration_s for r in self.reports if not r.partial},
        )

    def _outcome(self, report: PhaseEnded | None, *, reported: bool) -> Outcome | None:
        if self.ended_for is not None and self.ended_for.is_expected:
            return Outcome.PASSED
        return report.outcome if report and reported else None

    def _tell_in_flight(self, report: PhaseEnded | None) -> str:
        is_final = report is not None and report.outcome.is_final
        held_back = report is not None and is_consequence(report.message)
        if self.in_flight is None or not (held_back if is_final else self.killed):
            return ""
        place = f" at {self.in_flight.place}" if self.in_flight.place else ""
        return f"{self.in_flight.message}{place}"

    def _details(self, report: PhaseEnded | None) -> str:
        if self._tell_in_flight(report) and not (report and report.details):
            return self.in_flight.details if self.in_flight else ""
        return report.details if report else self.start_log

    def _end(self) -> RankEnd:
        if self.killed:
            return RankEnd.KILLED
        if self.death is not None and not self.left_as_announced:
            return RankEnd.EXITED if self.death.signal is None else RankEnd.SIGNALLED
        return RankEnd.LOST if self.lost else RankEnd.REPORTED

    def _exit_reason(self) -> str:
        when = "after it had finished the test" if self.done else f"in {self.phase}"
        if not self.done and not any(map(_is_bad, self.reports)):
            when += ", before it reported"
        if not self.ready:
            when = "before it was ready"
        if self.death is None:
            return f"was given up {when}: {self.lost}"
        if self.death.signal is not None:
            why = f": {self.last_words}" if self.last_words else ""
            return f"was killed by {signal_name(self.death.signal)} {when}{why}"
        return f"exited with code {self.death.code} {when}"


@dataclass(kw_only=True)
class Attempt:
    """The running test of a world."""

    test: TestCase
    number: int
    started_s: float
    """On the monotonic clock."""
    started_at_s: float
    """On the wall clock."""
    ranks: Sequence[RankProgress]
    failed_s: float | None = None
    """When the first rank failed, died or gave up (an expected failure too: its peers may wait for it)."""
    lost_peer_s: float | None = None
    """When the first rank failed because of another one, which has not failed yet."""
    cancelled: str = ""
    """Why it was cancelled, if it was."""
    cancelled_s: float = 0.0
    held_s: float | None = None
    """Since when somebody debugs a rank, so that no limit counts."""
    paused_s: float = 0.0
    """How long somebody has done so."""
    cause: HangCause | None = None
    """Why its ranks cannot go on, if the watch of a plugin has found that."""
    plugin_error: str = ""
    """The first error of a plugin that watches the ranks: the message, and the traceback on further lines."""

    @property
    def limit_s(self) -> float:
        """How long it may take."""
        return self.test.timeout_s

    @property
    def is_over(self) -> bool:
        """Whether every rank is done, dead or ended."""
        return all(progress.is_over for progress in self.ranks)

    @property
    def stop(self) -> RunStop | None:
        """The end of the run that one of its ranks asked for first."""
        reports = [(p.rank, report) for p in self.ranks for report in p.reports if report.stop is not None]
        if not reports:
            return None
        rank, first = min(reports, key=lambda each: each[1].ended_at_s)
        who = f"rank {rank}: " if self.test.kind is WorldKind.RANKS else ""
        return first.stop and msgspec.structs.replace(first.stop, reason=f"{who}{first.stop.reason}")

    def of(self, rank: int) -> RankProgress:
        """What a rank has done; ranks are consecutive, and begin at 0 unless the world spans nodes."""
        return self.ranks[rank - self.ranks[0].rank]

    def living(self) -> list[RankProgress]:
        """The ranks that are still at it."""
        return [progress for progress in self.ranks if not progress.is_over]

    def take_report(self, rank: int, report: PhaseEnded) -> None:
        """Note a report; a failed phase (not a mere subtest) starts the grace of the others."""
        self.of(rank).take_report(report)
        if not report.partial and not report.unrendered and report.outcome.is_final:
            self._note_end(report, report.ended_at_s)

    def _note_end(self, report: PhaseEnded | None, at_s: float) -> None:
        """Remember the end of a rank, by the report that speaks for it."""
        if report is not None and report.outcome.is_final and is_consequence(report.message):
            self.note_lost_peer(at_s)
        else:
            self.note_failure(at_s)

    def note_lost_peer(self, at_s: float) -> None:
        """A rank has failed because of another one, which gets time to report why."""
        self.lost_peer_s = at_s if self.lost_peer_s is None else self.lost_peer_s

    def give_up_waiting(self) -> None:
        """Take the failure of a rank that has lost a peer for the first one."""
        if self.lost_peer_s is not None:
            self.note_failure(self.lost_peer_s)

    def give_up_rendering(self, *, older_than_s: float = 0.0) -> None:
        """Judge ranks by what is known before their reports are rendered, if that takes longer than this."""
        now_s = monotonic()
        for progress in self.ranks:
            if progress.rendering is not None and now_s - progress.rendering_since_s >= older_than_s:
                self.note_failure(progress.rendering.ended_at_s)

    def take_in_flight(self, rank: int, raised: Raised, *, phase: str, xfail: bool) -> None:
        """Note the exception that a rank was handling; an assertion that was about to be raised is its failure."""
        progress = self.of(rank)
        progress.in_flight = raised
        if raised.is_assertion and progress.rendering is None:
            now_s = monotonic()
            progress.rendering = PhaseEnded(
                phase=phase,
                outcome=failed_outcome(phase, xfail=xfail),
                duration_s=now_s - self.started_s,
                ended_at_s=now_s,
                message=raised.message,
                details=raised.details,
                unrendered=True,
            )
            self.note_failure(now_s)

    def note_death(self, progress: RankProgress) -> None:
        """A process ended; nobody expects that in the middle of a test."""
        if not progress.left_as_announced:
            self.note_end(progress)

    def note_end(self, progress: RankProgress) -> None:
        """Remember a process that has ended; what it has reported before is the reason."""
        self._note_end(progress.verdict_report, progress.died_at_s)

    def note_failure(self, at_s: float) -> None:
        """Remember the first failure."""
        if self.failed_s is None:
            self.failed_s = at_s

    def cancel(self, reason: str, at_s: float) -> None:
        """Give it up; the first reason counts."""
        if not self.cancelled:
            self.cancelled, self.cancelled_s = reason, at_s

    @property
    def cancel_margin_s(self) -> float:
        """How long after it was cancelled the ranks may go on."""
        return 0.0

    def hold(self, now_s: float, *, on: bool) -> None:
        """Have the limits stand still while a rank is debugged."""
        if on:
            self.held_s = now_s if self.held_s is None else self.held_s
        elif self.held_s is not None:
            self.paused_s += now_s - self.held_s
            self.failed_s = None if self.failed_s is None else self.failed_s + now_s - self.held_s
            if self.lost_peer_s is not None:
                self.lost_peer_s += now_s - self.held_s
            self.held_s = None

    def start_again(self, now_s: float) -> None:
        """The test begins anew within this attempt: its time limit does, too."""
        self.paused_s = now_s - self.started_s

    @property
    def _stands_still(self) -> bool:
        """Whether no limit counts now."""
        return self.held_s is not None and not self.cancelled

    def overdue(self, now_s: float, grace_s: float) -> bool:
        """Whether the test's deadline, or the grace after a failure, has passed, or a hang or a cancellation ends it."""
        if self._stands_still:
            return False
        if now_s - self.started_s - self.paused_s >= self.limit_s:
            return True
        if self.cause is not None and self.cause.ends:
            return True
        if self.cancelled and now_s - self.cancelled_s >= self.cancel_margin_s:
            return True
        if self.lost_peer_s is not None and now_s - self.lost_peer_s >= max(grace_s, CONSEQUENCE_WAIT_S):
            return True
        return self.failed_s is not None and now_s - self.failed_s >= grace_s

    def next_check_s(self, now_s: float, grace_s: float) -> float:
        """Seconds until :meth:`overdue` may turn true by itself."""
        if self._stands_still:
            return NO_LIMIT_S
        limits = [self.started_s + self.paused_s + self.limit_s]
        if self.failed_s is not None:
            limits.append(self.failed_s + grace_s)
        if self.lost_peer_s is not None:
            limits.append(self.lost_peer_s + max(grace_s, CONSEQUENCE_WAIT_S))
        if self.cancelled:
            limits.append(self.cancelled_s + self.cancel_margin_s)
        return max(0.0, min(limits) - now_s)


class MainAttempt(Attempt):
    """The running test of a main process: its failure is a report like any other, it has no peers to end."""

    @property
    def limit_s(self) -> float:
        """How long it may take."""
        return self.test.timeout_s + (MAIN_MARGIN_S if self.test.kind is WorldKind.MAIN else 0.0)

    @property
    def cancel_margin_s(self) -> float:
        """How long after it was cancelled it may go on."""
        return MAIN_CANCEL_S if self.test.kind is WorldKind.MAIN else 0.0

    def take_report(self, rank: int, report: PhaseEnded) -> None:
        """Note a report."""
        self.of(rank).take_report(report)


def attempt_type(test: TestCase) -> type[Attempt]:
    """What kind of attempt runs a test on one machine."""
    special: type[Attempt] | None = plugin_manager().call("disttest_make_attempt", test=test)
    if special is not None:
        return special
    return Attempt if test.kind is WorldKind.RANKS else MainAttempt
