"""One attempt at a test, as its world records it: the reports of each rank so far, and when the attempt is over."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from disttest.clock import monotonic
from disttest.host.process import Exit, signal_name
from disttest.limits import (
    CONSEQUENCE_WAIT_S,
    MAIN_CANCEL_S,
    MAIN_MARGIN_S,
    NO_LIMIT_S,
    OWN_TEAR_DOWN_S,
    RENDERING_LEAST_S,
)
from disttest.model import (
    FEW_RANKS,
    Collective,
    HangCause,
    Outcome,
    RankEnd,
    RankRecord,
    Recorded,
    StartedProcess,
    TestCase,
    WorldKind,
)
from disttest.plugin_manager import plugin_manager
from disttest.results.verdict import is_consequence
from disttest.runtime.messages.protocol import (
    Message,
    PhaseEnded,
    Raised,
    RankNoted,
    RanksJoined,
    RunStop,
    TestDone,
    TestRecorded,
    TornDown,
)
from disttest.runtime.messages.raised import failed_outcome

# Characters of subtest reports kept for each rank; beyond this limit only outcome and message are kept,
# so that one message can still carry the rest.
_SUBTESTS_KEPT = 8 * 1024 * 1024
# If no phase of a rank failed, the first of these outcomes that it reported is its outcome.
_PRECEDENCE = (Outcome.XFAILED, Outcome.SKIPPED, Outcome.XPASSED, Outcome.PASSED)
_CUT = "a fixture that outlived this test, or a hook of a conftest, did not end in time, and was ended"
_LEFT_OUT = (Outcome.SKIPPED, Outcome.XFAILED)


def _is_bad(report: PhaseEnded) -> bool:
    return report.outcome.is_bad


def _is_strict(report: PhaseEnded) -> bool:
    return report.outcome is Outcome.XPASSED and report.strict


def _skips_too_late(report: PhaseEnded) -> bool:
    """Check for a skip in tear-down, which does not undo the result of the call."""
    return report.outcome is Outcome.SKIPPED and report.phase == "teardown"


@dataclass(kw_only=True)
class RankProgress:
    """Everything that one rank reported or did in the running attempt."""

    rank: int
    pid: int
    log: str
    ready: bool = True
    """Whether the rank came up and said so."""
    start_log: str = ""
    """End of the log of a rank that died before it was ready."""
    phase: str = "setup"
    reports: list[PhaseEnded] = field(default_factory=list)
    rendering: PhaseEnded | None = None
    """A failed phase whose full report has not arrived yet: its outcome and message only."""
    rendering_since_s: float = 0.0
    busy_until_s: float = 0.0
    """End of the time for its own failure: to render the report, then to tear down."""
    because_of: tuple[int, ...] = ()
    """Ranks that had not joined the failed call, or the one rank that made a different call."""
    in_flight: Raised | None = None
    """The exception that the rank was handling when it was ended."""
    joined: list[RanksJoined] = field(default_factory=list)
    """Results of the ranks that this process started (for example with torch's test classes)."""
    recorded: Recorded = field(default_factory=Recorded)
    """Warnings and properties that the test recorded."""
    done: TestDone | None = None
    torn_down: bool = False
    """Whether the world ended after this test, and the fixtures that outlived it were torn down."""
    failed_tear_down: PhaseEnded | None = None
    """The failure of one of them."""
    noted: dict[str, msgspec.Raw] = field(default_factory=dict)
    """Plugin name -> data that its part in the rank sent during the test."""
    death: Exit | None = None
    died_at_s: float = 0.0
    last_words: str = ""
    """Cause of death where it is known: an uncaught C++ exception, the out-of-memory killer."""
    differing_calls: str = ""
    """The calls that do not match, if its backend ended the process because of them."""
    lost: str = ""
    """The reason why its control channel is no longer trusted."""
    killed: bool = False
    hung: bool = False
    ended_for: HangCause | None = None
    """The cause that ended the rank before the test's time limit: no rank could make progress."""
    stacks: str = ""
    process_state: str = ""
    """The kernel's reason why it could not write stacks."""
    started: tuple[StartedProcess, ...] = ()
    """For an isolated test: the processes that it started."""
    deaths_below: str = ""
    """Those of its processes that died without being awaited."""
    native: str = ""
    """C frames, if ``--native-stacks`` asks for them; they are written to the log only."""
    crash: str = ""
    """Stacks that the rank wrote into its log while a fatal signal ended it."""
    collectives: tuple[Collective, ...] = ()
    xfail: bool = False
    """Whether the test was marked as an expected failure in its last phase."""

    size: int = 0
    """Characters in its reports so far."""

    def take_report(self, report: PhaseEnded) -> None:
        """Keep a report; beyond :data:`_SUBTESTS_KEPT` characters, drop the texts of subtests."""
        if report.unrendered:
            self.rendering, self.rendering_since_s = report, monotonic()
            self.busy_until_s = self.rendering_since_s + RENDERING_LEAST_S
            self.because_of = report.because_of
            self.in_flight = report.held_back
            return
        self.rendering = None
        # The tear-down of a rank that lost a peer most likely waits for it.
        if not report.partial and report.outcome.is_failure:
            self.busy_until_s = 0.0 if is_consequence(report.message) else monotonic() + OWN_TEAR_DOWN_S
        self.size += len(report.report) + len(report.details)
        # Only subtests lose their text: a test can have any number of them, and one report per phase
        # otherwise.
        if report.partial and self.size > _SUBTESTS_KEPT:
            report = msgspec.structs.replace(report, report="", details="")
        self.reports.append(report)

    def take(self, message: Message) -> None:
        """Keep any other message of the rank."""
        match message:
            case RankNoted():
                self.noted[message.name] = message.data
            case TestRecorded():
                self.recorded = message.recorded
            case TestDone():
                self.done = message
            case TornDown(failure=failure):
                self.torn_down, self.failed_tear_down = True, failure

    @property
    def is_over(self) -> bool:
        """Whether this rank will send nothing more."""
        finished = self.done is not None and (self.done.exit_code is None or self.done.stays)
        # A rank that announced an exit code is over only when its process has ended with it.
        return finished or self.death is not None or bool(self.lost) or self.killed

    @property
    def died(self) -> bool:
        """Whether its process ended, or its channel broke, although disttest did not end it."""
        return not self.killed and not self.left_as_announced and (self.death is not None or bool(self.lost))

    @property
    def left_as_announced(self) -> bool:
        """Whether its process ended as announced. If the rank stays for another test, its later end does not count."""
        if self.done is None or self.done.exit_code is None:
            return False
        return self.done.stays or (self.death is not None and self.death.code == self.done.exit_code)

    @property
    def verdict_report(self) -> PhaseEnded | None:
        """The report that decides the outcome: the first failure, otherwise by precedence."""
        reports = [*self.reports, *filter(None, [self.rendering])]
        # Failures first: a tear-down that fails after a strict xfail has passed is the worse of the two.
        for decides in (_is_bad, _is_strict):
            for report in reports:
                if decides(report):
                    return report
        whole = [report for report in reports if not report.partial and not _skips_too_late(report)]
        for outcome in _PRECEDENCE:
            for report in whole:
                # A set-up and a tear-down pass in a test without a call as well, and such a test has not run.
                if report.outcome is outcome and (outcome is not Outcome.PASSED or report.phase == "call"):
                    return report
        return None

    @property
    def further_failures(self) -> list[PhaseEnded]:
        """The failed phases and subtests besides the one that decides."""
        decides = self.verdict_report
        return [report for report in self.reports if report.outcome.is_bad and report is not decides]

    @property
    def may_run_another(self) -> bool:
        """Whether its process can run the next test: nothing had to be left unrestored."""
        return self.done is not None and not self.done.retire and not self.done.broken

    def record(self, started_at_s: float) -> RankRecord:
        """Summarize the rank for the verdict; ``started_at_s`` is on the monotonic clock."""
        report = self.verdict_report
        has_failed = report is not None and report.outcome.is_bad
        # A report counts as the outcome of a rank that finished, or that had failed before it was ended or
        # died. A passed phase proves nothing: its tear-down may have been cut.
        was_cut = self.killed and report is not None and report.outcome.is_failure
        reported = self.done is not None or was_cut or (self.died and has_failed)
        message = report.message if report else ""
        failed_at_s = report.ended_at_s if report and has_failed else None
        # The failure is the cause; the death is its consequence.
        if self.died and has_failed:
            message = f"{message}; then it {self._exit_reason()}"
        elif self.died:
            message, failed_at_s = self._exit_reason(), self.died_at_s
        elif self.killed and not (report and report.outcome.is_failure):
            # An xfail that was reported before stays the rank's own message.
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
            if report and (has_failed or ((report.outcome.is_failure or self.done) and not self.died))
            else self.phase,
            message=message,
            details=self._details(report),
            stacks="\n\n".join(filter(None, (self.stacks, self.crash))),
            started=self.started,
            process_state=self.process_state,
            collectives=self.collectives,
            unrendered=self.rendering is not None and report is self.rendering,
            because_of=self.because_of,
            differing_calls=self.differing_calls,
            in_flight=self._describe_in_flight(report),
            failed_after_s=None if failed_at_s is None else max(0.0, failed_at_s - started_at_s),
            exit_code=stayed.exit_code if stayed else ended.code if ended else None,
            signal=ended.signal if ended else None,
            hung=self.hung,
            ended_for=self.ended_for.name if self.ended_for is not None else "",
            pid=self.pid,
            log=self.log,
            strict=report is not None and _is_strict(report),
            in_subtest=report is not None and has_failed and report.partial,
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

    def _describe_in_flight(self, report: PhaseEnded | None) -> str:
        is_final = report is not None and report.outcome.is_failure
        held_back = report is not None and is_consequence(report.message)
        if self.in_flight is None or not (held_back if is_final else self.killed):
            return ""
        place = f" at {self.in_flight.place}" if self.in_flight.place else ""
        return f"{self.in_flight.message}{place}"

    def _details(self, report: PhaseEnded | None) -> str:
        if self._describe_in_flight(report) and not (report and report.details):
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
    """Monotonic clock."""
    started_at_s: float
    """Wall clock."""
    ranks: Sequence[RankProgress]
    failed_s: float | None = None
    """When the first rank failed, died or xfailed; an expected failure counts because peers may wait for that rank."""
    lost_peer_s: float | None = None
    """When the first rank failed because it lost a peer, and the peer itself has not failed yet."""
    left: bool = False
    """Whether a rank left the test by `pytest.xfail`: it may have missed calls of the others."""
    cancelled: str = ""
    """The reason for a cancellation; empty if there was none."""
    cancelled_s: float = 0.0
    reported_s: float = 0.0
    """When the last report arrived."""
    held_s: float | None = None
    """Start of a debugger session in a rank; time limits are suspended while it lasts."""
    paused_s: float = 0.0
    """Total length of such debugger sessions."""
    cause: HangCause | None = None
    """The reason why no rank can make progress, if the watch of a plugin found one."""
    plugin_error: str = ""
    """The first error of a plugin that watches the ranks: message, then the traceback on further lines."""

    @property
    def limit_s(self) -> float:
        """The time limit of the test, in seconds."""
        return self.test.timeout_s

    @property
    def is_over(self) -> bool:
        """Whether every rank is done, dead or ended."""
        return all(progress.is_over for progress in self.ranks)

    @property
    def stop(self) -> RunStop | None:
        """The first request to end the run that any rank made (``pytest.exit``, ``session.shouldstop``)."""
        reports = [(p.rank, report) for p in self.ranks for report in p.reports if report.stop is not None]
        if not reports:
            return None
        # All ranks read the same monotonic clock of the machine, so their times can be compared.
        rank, first = min(reports, key=lambda each: each[1].ended_at_s)
        who = f"rank {rank}: " if self.test.kind is WorldKind.RANKS else ""
        return first.stop and msgspec.structs.replace(first.stop, reason=f"{who}{first.stop.reason}")

    def of(self, rank: int) -> RankProgress:
        """Look up a rank. Ranks are consecutive; on a node of a spanning world they need not begin at 0."""
        return self.ranks[rank - self.ranks[0].rank]

    def living(self) -> list[RankProgress]:
        """List the ranks that have not finished yet."""
        return [progress for progress in self.ranks if not progress.is_over]

    def take_report(self, rank: int, report: PhaseEnded, *, marked: bool = True) -> None:
        """Record a report. A failed phase, unlike a failed subtest, starts the grace period of the other ranks.

        Args:
            rank: the rank that sent it.
            report: the report.
            marked: whether the test has an xfail mark in this rank.
        """
        self.of(rank).take_report(report)
        self.reported_s = monotonic()
        # A rank that calls `pytest.xfail` where ranks may differ ends only itself: the others may fail.
        leaves = report.outcome is Outcome.XFAILED and not marked and self.test.ranks_may_differ
        self.left = self.left or leaves
        if not report.partial and not report.unrendered and report.outcome.is_failure and not leaves:
            self._note_end(report, report.ended_at_s)

    def _note_end(self, report: PhaseEnded | None, at_s: float) -> None:
        """Record when a rank ended, classified by the report that decides its outcome."""
        if report is not None and report.outcome.is_failure and is_consequence(report.message):
            self.note_lost_peer(at_s)
        else:
            self.note_failure(at_s)

    def note_lost_peer(self, at_s: float) -> None:
        """Record a failure that blames another rank; that rank gets time to report its own failure."""
        self.lost_peer_s = at_s if self.lost_peer_s is None else self.lost_peer_s

    def give_up_waiting(self) -> None:
        """Treat the failure of a rank that lost a peer as the first failure: the peer reported none."""
        if self.lost_peer_s is not None:
            self.note_failure(self.lost_peer_s)

    def give_up_rendering(self, *, older_than_s: float = 0.0) -> None:
        """Count failures whose reports are still being rendered after ``older_than_s`` seconds."""
        now_s = monotonic()
        for progress in self.ranks:
            if progress.rendering is not None and now_s - progress.rendering_since_s >= older_than_s:
                self.note_failure(progress.rendering.ended_at_s)

    def take_in_flight(self, rank: int, raised: Raised, *, phase: str, xfail: bool) -> None:
        """Record the exception that a rank was handling; an assertion that it was about to raise is its failure."""
        progress = self.of(rank)
        progress.in_flight = raised
        # The operands are rendered before the AssertionError exists, so no later message of the rank would
        # have it.
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
        """Record the death of a process, unless the rank announced it."""
        if not progress.left_as_announced:
            self.note_end(progress)

    def note_end(self, progress: RankProgress) -> None:
        """Record a process that ended; an earlier report of it is the reason."""
        self._note_end(progress.verdict_report, progress.died_at_s)

    def note_failure(self, at_s: float) -> None:
        """Record the time of the first failure."""
        # Later failures may be consequences of the first one.
        if self.failed_s is None:
            self.failed_s = at_s

    def failed_tear_downs(self, stuck: Collection[int]) -> list[RankProgress]:
        """List the ranks in which a fixture that outlived the test failed, unless that follows from the end of a peer.

        Args:
            stuck: ranks that were ended because they did not leave.
        """
        if any(progress.killed for progress in self.ranks):
            return []
        for progress in map(self.of, stuck):
            # A failure that it reports is most likely a consequence of its end.
            finished = progress.torn_down and progress.failed_tear_down is None
            if progress.done and progress.done.shares and not finished:
                progress.failed_tear_down = PhaseEnded(
                    phase="teardown",
                    outcome=Outcome.ERROR,
                    duration_s=0.0,
                    ended_at_s=monotonic(),
                    message=_CUT,
                )
        return [
            progress
            for progress in self.ranks
            if (failure := progress.failed_tear_down) is not None
            and not (self.failed_s is not None and is_consequence(failure.message))
        ]

    def cancel(self, reason: str, at_s: float) -> None:
        """Cancel the attempt; the first reason is kept."""
        if not self.cancelled:
            self.cancelled, self.cancelled_s = reason, at_s

    @property
    def cancel_margin_s(self) -> float:
        """Seconds that the ranks may continue after a cancellation."""
        return 0.0

    def hold(self, now_s: float, *, on: bool) -> None:
        """Suspend or resume the time limits, because a rank is being debugged."""
        if on:
            self.held_s = now_s if self.held_s is None else self.held_s
        elif self.held_s is not None:
            self.paused_s += now_s - self.held_s
            # Shift the start of the grace period by the time in the debugger.
            self.failed_s = None if self.failed_s is None else self.failed_s + now_s - self.held_s
            if self.lost_peer_s is not None:
                self.lost_peer_s += now_s - self.held_s
            self.held_s = None

    def start_again(self, now_s: float) -> None:
        """Restart the time limit: the test runs again within this attempt, in new ranks."""
        # The time that the first ranks took counts as a pause.
        self.paused_s = now_s - self.started_s

    @property
    def _is_suspended(self) -> bool:
        """Whether the time limits are suspended now."""
        return self.held_s is not None and not self.cancelled

    def overdue(self, now_s: float, grace_s: float) -> bool:
        """Whether the ranks must be ended now: time limit, grace period, proven hang or cancellation."""
        if self._is_suspended:
            return False
        if now_s - self.started_s - self.paused_s >= self.limit_s:
            return True
        if self.cause is not None and self.cause.ends:
            return True
        if self.cancelled and now_s - self.cancelled_s >= self.cancel_margin_s:
            return True
        # The lost peer may be cleaning up, and its own failure, which is the cause, comes afterwards.
        if self.lost_peer_s is not None and now_s - self.lost_peer_s >= max(grace_s, CONSEQUENCE_WAIT_S):
            return True
        return self.failed_s is not None and now_s >= self._grace_ends_s(self.failed_s, grace_s)

    def _grace_ends_s(self, failed_s: float, grace_s: float) -> float:
        """When the grace period after the first failure ends. In a large world each further report starts it again.

        Hundreds of ranks share the processors, so the grace period ends before most of them can report the same failure. If
        the others hang, there are no further reports.
        """
        # With a fixed period of 0.3 s, 64 ranks that failed the same assertion were reported as one culprit
        # and 63 victims.
        since_s = failed_s if len(self.ranks) <= FEW_RANKS else max(failed_s, self.reported_s)
        # Ranks that have failed as well render their reports and tear down, which takes longer than the grace period.
        return max([since_s + grace_s, *(rank.busy_until_s for rank in self.ranks if not rank.is_over)])

    def next_check_s(self, now_s: float, grace_s: float) -> float:
        """Seconds until :meth:`overdue` can become true through time alone."""
        if self._is_suspended:
            # A limit may have passed before the debugger opened. With 0 the loop would use a whole processor
            # until it closes.
            return NO_LIMIT_S
        # Each of these times is one condition of `overdue`. A missing one would be noticed up to TICK_S late.
        limits = [self.started_s + self.paused_s + self.limit_s]
        if self.failed_s is not None:
            limits.append(self._grace_ends_s(self.failed_s, grace_s))
        if self.lost_peer_s is not None:
            limits.append(self.lost_peer_s + max(grace_s, CONSEQUENCE_WAIT_S))
        if self.cancelled:
            limits.append(self.cancelled_s + self.cancel_margin_s)
        return max(0.0, min(limits) - now_s)


class MainAttempt(Attempt):
    """The running test of a main process. A failure ends no peers, because there are none."""

    @property
    def limit_s(self) -> float:
        """The time limit in seconds; a main process gets a margin to end its own ranks first."""
        return self.test.timeout_s + (MAIN_MARGIN_S if self.test.kind is WorldKind.MAIN else 0.0)

    @property
    def cancel_margin_s(self) -> float:
        """Seconds that it may continue after a cancellation, to end its own ranks."""
        return MAIN_CANCEL_S if self.test.kind is WorldKind.MAIN else 0.0

    def take_report(self, rank: int, report: PhaseEnded, *, marked: bool = True) -> None:
        """Record a report."""
        del marked
        self.of(rank).take_report(report)


def attempt_type(test: TestCase) -> type[Attempt]:
    """Choose the attempt class for a test on one machine."""
    special: type[Attempt] | None = plugin_manager().call("disttest_make_attempt", test=test)
    if special is not None:
        return special
    return Attempt if test.kind is WorldKind.RANKS else MainAttempt
