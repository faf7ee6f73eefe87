"""The host of a main process: starts and supervises ranks, and reports to the test and to the world."""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from disttest.clock import monotonic
from disttest.limits import RANKS_LEAVE_S
from disttest.model import Outcome, RankEnd, RankRecord, TestCase, VerdictRule
from disttest.plugins.launching_classes.account import Account, ChannelPipe, thread_records
from disttest.plugins.launching_classes.inheritance import Inheritance
from disttest.plugins.launching_classes.rank_starter import RankMain, RankStarter
from disttest.plugins.launching_classes.ranks import run_once, serve_requests, serve_tests, settle_for_test
from disttest.plugins.launching_classes.team import (
    HostedAttempt,
    Rank,
    RankRequest,
    RanksWereUsed,
    ReusedTeam,
    Team,
    blame_for_waiting,
    foreign_record,
)
from disttest.results.exit_codes import NO_RANKS, ExitRule, kept_outcome, read_record, torch_outcome
from disttest.results.rulings import disagreement
from disttest.runtime.messages.phases import PhaseCell
from disttest.runtime.messages.protocol import (
    Cancel,
    Channel,
    RanksJoined,
    RunStop,
    RunTest,
    TestDone,
    Variables,
)
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.runtime.world.attempt import RankProgress
from disttest.runtime.world.rank_handles import Supervisor
from disttest.testing.hosting import Body, RanksFailed


class ForkHost:
    """The host of a main process. Its ranks are forks of this process."""

    def __init__(
        self, spec: RankSpec, channel: Channel, config: pytest.Config, skips: dict[int, str]
    ) -> None:
        self._spec = spec
        self._channel = channel
        self._config = config
        self._skips = skips
        self._order: RunTest | None = None
        self._may_differ = False
        """Whether the running test is marked ``ranks_may_differ``."""
        self._is_torchs = True
        """Whether torch's rules apply to the running test."""
        self._launches = 0
        """Number of times that the running test has started ranks."""
        self._began_s = 0.0
        self._stop: RunStop | None = None
        """Request of a rank to end the run."""
        self._team: Team | None = None
        self._kept: Team | None = None
        self._reused = ReusedTeam()
        self._starter = RankStarter(spec, channel, config)
        self._phase = PhaseCell(spec.phases, spec.place) if spec.settings.is_debugged else None

    @property
    def on_gpus(self) -> bool:
        """Whether its ranks may use GPUs."""
        return self._spec.shape.device != "cpu"

    @property
    def by_torchs_rules(self) -> bool:
        """Whether the running test passes if torch's own harness passes it."""
        return self._is_torchs and self._spec.settings.verdict is VerdictRule.TORCH

    @property
    def may_reuse(self) -> bool:
        """Whether the ranks of the running test may have run another test of its class."""
        return self._running().reuse

    # --- around a test

    def begin(self, order: RunTest, *, may_differ: bool, is_torchs: bool) -> None:
        """Start a test in this main process.

        Args:
            order: the order of the world.
            may_differ: whether the test is marked ``ranks_may_differ``.
            is_torchs: whether its class is of torch's kind, whose own rules are reported as well.
        """
        self._order, self._may_differ, self._is_torchs = order, may_differ, is_torchs
        self._launches = 0
        self._began_s = monotonic()

    def settle(self) -> None:
        """Finish the test. Ranks that it never waited for are ended and count as failures."""
        if self._team is not None:
            team, self._team = self._team, None
            attempt = self._attempt(team, ExitRule(), limit_s=0.0)
            records = tuple(map(blame_for_waiting, self._watch(team, attempt)))
            self._send_records(attempt, records, self._by_torch(records, ExitRule()) if records else None)
            if team is self._reused.team:
                self._reused.team = None
            team.stop(limit_s=0.0)

    # --- ranks for one test

    def start(self, size: int, body: Body) -> Sequence[Rank]:
        """Start the ranks of the running test."""

        def whole_body(rank: int, pipe: Any) -> None:
            body(rank, pipe)
            self._wait_for_gpus()

        self._end_reused()
        team = self._team = Team(self._spec, size)
        self._note_launch(team, size)
        for rank in range(size):
            self._fork(
                team, rank, lambda rank, _channel, mine, _: run_once(rank, mine, whole_body, self._skips)
            )
        return team.ranks

    def reuse_ranks(self, request: RankRequest) -> Sequence[Rank]:
        """Start the ranks of the running test, or reuse those that have passed another test of its class."""
        if not self._reused.may_run(request):
            self._end_reused()
            team = Team(self._spec, request.size)
            inheritance = self._reused.replace(request, team)
            for rank in range(request.size):
                self._fork(team, rank, partial(self._serve_requests, request, inheritance))
        assert self._reused.team is not None
        team = self._team = self._reused.team
        self._note_launch(team, request.size)
        variables = self._reused.begin_test(team)
        self._give_out(team, method=request.method, file_name=request.file_name, variables=variables)
        return team.ranks

    def _serve_requests(
        self,
        request: RankRequest,
        inheritance: Inheritance,
        rank: int,
        channel: Channel,
        _mine: Account,
        stacks: Path,
    ) -> TestDone:
        """Serve the requests in a rank."""

        def run(order: RunTest, pipe: ChannelPipe) -> None:
            request.run(rank, order.method, order.file_name, pipe)

        settle = partial(settle_for_test, self._config, stacks)
        return serve_requests(channel, run, inheritance, self._skips, settle)

    def _end_reused(self) -> None:
        # Forgotten before it is stopped: an exception in the stop must not leave a stopped team for the next
        # test.
        team, self._reused.team = self._reused.team, None
        if team is not None:
            team.stop()

    def join(self, rule: ExitRule) -> None:
        """Wait for the ranks of the running test, report them, and raise their failure.

        Raises:
            RanksWereUsed: the test must run again in new ranks.
        """
        team, self._team = self._team, None
        if team is None or not team.ranks:
            if self.by_torchs_rules:
                return
            raise RanksFailed(NO_RANKS)
        attempt = self._attempt(team, rule, limit_s=self._limit_s())
        records = self._watch(team, attempt)
        is_reused = team is self._reused.team
        again = is_reused and self._reused.must_be_run_again(attempt, is_good=self._are_good(records))
        outdated = self._reused.outdated if is_reused else ""
        by_torch = self._by_torch(records, rule)
        # Sent also if the test runs again, so that the run shows why it did.
        self._send_records(attempt, records, by_torch, superseded=again, outdated=outdated)
        # After the report: an exception in the stop must not lose the verdict.
        over = self._reused.finish_test(attempt) if is_reused else team
        if over is not None:
            over.stop(limit_s=0.0)
        if again:
            self._began_s = monotonic()
            # Ranks are reused once: a second failure, now in new ranks, is the test's own.
            self._order = msgspec.structs.replace(self._running(), reuse=False)
            raise RanksWereUsed
        self._raise_outcome(records, by_torch)

    def join_foreign(
        self,
        processes: Sequence[Any],
        rule: ExitRule,
        join: Callable[[], None],
        tracebacks: Callable[[], Mapping[int, str]],
    ) -> None:
        """Wait for ranks that the class started with ``multiprocessing``, and judge them by disttest's rules.

        Args:
            processes: processes of ``multiprocessing``, one for each rank.
            rule: the allowed exit codes.
            join: waits for them as the class does, and raises its verdict.
            tracebacks: returns the tracebacks that they sent, by process id; called after the wait.
        """
        began_s = monotonic()
        try:
            join()
        finally:
            # In `finally`, because the class raises its own verdict, and the world needs the records in any
            # case.
            after_s, texts = monotonic() - began_s, tracebacks()
            found = [
                foreign_record(rank, process.exitcode, after_s, texts.get(process.pid, ""))
                for rank, process in enumerate(processes)
            ]
            records = tuple(read_record(record, rule, self._skips) for record in found)
            by_torch = self._by_torch(records, rule)
            self._channel.send(RanksJoined(records=records, torch_outcome=by_torch))
        self._raise_outcome(records, by_torch)

    def report_passed(self, size: int) -> None:
        """Report ranks that passed according to the class, which has started them and has no further data."""
        records = (
            RankRecord(rank=rank, end=RankEnd.REPORTED, outcome=Outcome.PASSED, phase="call")
            for rank in range(size)
        )
        self._channel.send(RanksJoined(records=tuple(records)))

    # --- ranks that are threads of this process

    def report_threads(self, size: int, raised: Sequence[tuple[int, BaseException]]) -> None:
        """Report the threads of a test as its ranks, unless they agree to pass or skip, as the main process reports."""
        records = thread_records(size, raised, log=f"{self._running().folder}/main.log")
        outcomes = {record.outcome for record in records}
        differ = Outcome.SKIPPED in outcomes and len(outcomes) > 1
        if Outcome.FAILED in outcomes or differ:
            # torch raises exceptions of threads in the main process, which may expect them. It ignores other ends.
            ignored = not any(
                isinstance(error, Exception) and not isinstance(error, unittest.SkipTest)
                for _, error in raised
            )
            by_torch = Outcome.SKIPPED if Outcome.SKIPPED in outcomes else Outcome.PASSED
            self._channel.send(
                RanksJoined(
                    records=records,
                    threads=True,
                    ignored=ignored,
                    torch_outcome=by_torch if ignored else None,
                )
            )

    # --- ranks for many tests

    def keep(
        self, owner: object, size: int, prepare: Callable[[int], None], run: Callable[[str], None]
    ) -> None:
        """Start ranks that stay, unless healthy ones exist."""

        def run_whole(name: str) -> None:
            run(name)
            self._wait_for_gpus()

        if self._kept is not None and self._kept.owner == owner and not self._kept.broken:
            return
        self.release(None)
        team = self._kept = Team(self._spec, size)
        team.owner = owner
        for rank in range(size):
            self._fork(
                team,
                rank,
                lambda rank, channel, mine, _: serve_tests(
                    rank, channel, mine, prepare, run_whole, self._skips
                ),
            )

    def run_kept(self, owner: object, name: str) -> None:
        """Have the kept ranks run one test. Ranks that failed are replaced before the next one."""
        team = self._kept
        if team is None or team.owner != owner:
            raise RanksFailed(NO_RANKS)
        attempt = self._attempt(team, ExitRule(), limit_s=self._limit_s())
        self._note_launch(team, len(team.ranks))
        self._give_out(team, nodeid=name)
        records = self._watch(team, attempt)
        by_torch = kept_outcome(records) if self._is_torchs else None
        self._send_records(attempt, records, by_torch)
        # By all records, not by torch's rule: there a skip of rank 0 hides a failure of rank 1, whose state
        # is unknown.
        if any(record.outcome is None or record.outcome.is_bad for record in records):
            team.broken = True
            # Immediately: the others may wait in a collective for the rank that has failed, and would not
            # leave.
            self.release(None, limit_s=0.0)
        self._raise_outcome(records, by_torch)

    def keeps(self, owner: object) -> bool:
        """Return whether ranks of this owner stay for its next test."""
        return self._kept is not None and self._kept.owner == owner

    def release(self, owner: object, *, limit_s: float = RANKS_LEAVE_S) -> None:
        """Let the kept ranks exit: those of this owner, or of any if it is None."""
        if owner is None:
            self._end_reused()
        if self._kept is not None and owner in (None, self._kept.owner):
            self._kept.stop(limit_s=limit_s)
            self._kept = None

    # --- internals

    def _wait_for_gpus(self) -> None:
        """Wait for the GPU in a rank whose test has passed: work that fails later would belong to no test."""
        if self.on_gpus and self._spec.settings.verdict is VerdictRule.STRICT:
            from disttest.plugins.gpus.gpu_state import wait_for_gpus

            wait_for_gpus()

    def _running(self) -> RunTest:
        if self._order is None:
            raise RanksFailed("ranks were started while no test runs")
        return self._order

    def _log(self, rank: int) -> str:
        """Return the path of a rank's log of the running test, relative to the results directory."""
        return f"{self._running().folder}/rank{rank}.log"

    def _give_out(self, team: Team, **fields: str | Variables) -> None:
        """Have ranks that stay run the test."""
        for handle in team.supervisor.handles:
            log = str(team.supervisor.logs.open(self._log(handle.rank)))
            handle.channel.send(msgspec.structs.replace(self._running(), next_nodeid=None, log=log, **fields))

    def _note_launch(self, team: Team, size: int) -> None:
        """Mark a further launch of the same test in the logs, which its ranks continue."""
        # Classes of DeepSpeed's kind launch again for each size of a list, and a `setUp` may launch for a
        # fixture.
        self._launches += 1
        if self._launches == 1:
            return
        logs = team.supervisor.logs
        for rank in range(size):
            logs.open(self._log(rank))
            begins = f"\n[disttest: launch {self._launches} of the test, rank {rank} of {size}]\n"
            logs.log(self._log(rank)).append(begins)

    def _limit_s(self) -> float:
        # One limit for all launches of a test, its `setUp` included.
        return max(0.0, self._running().limit_s - (monotonic() - self._began_s))

    def _fork(self, team: Team, rank: int, main: RankMain) -> None:
        self._starter.fork(team, rank, self._log(rank), main)

    def _attempt(self, team: Team, rule: ExitRule, *, limit_s: float) -> HostedAttempt:
        now_s = monotonic()
        nodeid = self._running().nodeid
        attempt = HostedAttempt(
            test=TestCase(
                nodeid=nodeid, slug="", classname="", name="", file="", line=1, suite="", timeout_s=limit_s
            ),
            number=1,
            started_s=now_s,
            started_at_s=0.0,
            ranks=[
                RankProgress(rank=handle.rank, pid=handle.child.pid, log=self._log(handle.rank), phase="call")
                for handle in team.supervisor.handles
            ],
        )
        attempt.rule, attempt.skips, attempt.main = rule, self._skips, self._phase
        # A test that expects a rank to abort often checks how the others notice it.
        attempt.waits_for_peers = self.by_torchs_rules or rule.any_code or rule.expected != 0
        return attempt

    def _watch(self, team: Team, attempt: HostedAttempt) -> tuple[RankRecord, ...]:
        supervisor = team.supervisor
        supervisor.begin(attempt)
        with self._cancelling(supervisor, attempt):
            supervisor.watch(attempt)
        # A rank may end while it is debugged, and only the end of the hold adds its time to `paused_s`.
        attempt.hold(monotonic(), on=False)
        # Further ranks of this test get the rest of its limit, in which the time in a debugger does not
        # count.
        self._began_s += attempt.paused_s
        supervisor.close_logs(attempt)
        self._stop = attempt.stop
        return tuple(attempt.read(progress) for progress in attempt.ranks)

    def _send_records(
        self,
        attempt: HostedAttempt,
        records: tuple[RankRecord, ...],
        by_torch: Outcome | None,
        *,
        superseded: bool = False,
        outdated: str = "",
    ) -> None:
        self._channel.send(
            RanksJoined(
                records=records,
                torch_outcome=by_torch,
                cause=attempt.cause,
                plugin_error=attempt.plugin_error,
                superseded=superseded,
                outdated=outdated,
            )
        )

    def _are_good(self, records: Sequence[RankRecord]) -> bool:
        """Return whether all ranks passed or skipped, and agree with each other."""
        bad = any(record.outcome is None or record.outcome.is_bad for record in records)
        return not bad and not disagreement(records, may_differ=self._may_differ)

    def _by_torch(self, records: Sequence[RankRecord], rule: ExitRule) -> Outcome | None:
        return torch_outcome(records, rule, self._skips) if self._is_torchs else None

    @contextlib.contextmanager
    def _cancelling(self, supervisor: Supervisor, attempt: HostedAttempt) -> Iterator[None]:
        """Watch the channel to the world meanwhile: a cancelled run ends the ranks after taking their stacks."""

        def on_message() -> None:
            for message in self._channel.receive(wait=False):
                if isinstance(message, Cancel):
                    attempt.cancel(message.reason, monotonic())
            if self._channel.closed_by_peer:
                supervisor.loop.ignore(self._channel)
                attempt.cancel("the world is gone", monotonic())

        # The main process waits in the supervisor's loop, so a cancellation would otherwise be read only
        # after the test.
        supervisor.loop.watch(self._channel, on_message)
        try:
            yield
        finally:
            supervisor.loop.ignore(self._channel)

    def _raise_outcome(self, records: Sequence[RankRecord], by_torch: Outcome | None) -> None:
        # First: a rank that ends the run ends it even if the others have failed.
        if self._stop is not None:
            pytest.exit(self._stop.reason, returncode=self._stop.exit_code)
        if self.by_torchs_rules:
            if by_torch is Outcome.SKIPPED:
                skipped = (record for record in records if record.outcome is Outcome.SKIPPED)
                raise unittest.SkipTest(next(skipped, records[0]).message)
            if by_torch is Outcome.PASSED:
                return
        raise_outcome(records, may_differ=self._may_differ)


def raise_outcome(records: Sequence[RankRecord], *, may_differ: bool) -> None:
    """Raise the outcome of ranks by the strict rules.

    Raises:
        RanksFailed: a rank failed, or they disagree.
        unittest.SkipTest: all of them skipped.
    """
    bad = [record for record in records if record.outcome is None or record.outcome.is_bad]
    if bad:
        failures = "; ".join(f"rank {record.rank}: {record.message or 'did not finish'}" for record in bad)
        raise RanksFailed(failures)
    if words := disagreement(records, may_differ=may_differ):
        raise RanksFailed(words)
    if all(record.outcome is Outcome.SKIPPED for record in records):
        raise unittest.SkipTest(records[0].message)
