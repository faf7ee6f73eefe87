"""Starts ranks for a test's main process, supervises them, and tells both the test and the world."""

from __future__ import annotations

import contextlib
import os
import time
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from disttest.host.process import die_with_parent, fork_child, leave
from disttest.limits import RANKS_LEAVE_S
from disttest.model import Outcome, RankEnd, RankRecord, TestCase, VerdictRule
from disttest.results.exit_codes import NO_RANKS, ExitRule, read_record, torch_outcome
from disttest.results.rulings import disagreement
from disttest.runtime.hosting.account import Account
from disttest.runtime.hosting.debugged import debug_hosted_rank
from disttest.runtime.hosting.raised import thread_records
from disttest.runtime.hosting.ranks import account_for, run_once, serve_tests, settle_in
from disttest.runtime.hosting.team import (
    HostedAttempt,
    Rank,
    Team,
    blame_for_waiting,
    foreign_record,
)
from disttest.runtime.messages.phases import PhaseCell
from disttest.runtime.messages.protocol import Cancel, Channel, RankReady, RanksJoined, RunTest, TestDone
from disttest.runtime.rank import flight
from disttest.runtime.rank.child import belong_to_this_process, out_of_the_way
from disttest.runtime.rank.measured import save_coverage
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.runtime.rank.waits import watch_waits
from disttest.runtime.world.attempt import RankProgress
from disttest.runtime.world.evidence import EvidenceSource
from disttest.runtime.world.rank_handles import RankProcessHandle, Supervisor
from disttest.testing.hosting import Body, RanksFailed


class ForkHost:
    """The host of a main process: its ranks are forks of it."""

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
        """Whether torch's rules say anything of the running test."""
        self._launches = 0
        """How often the running test has started ranks."""
        self._began_s = 0.0
        self._team: Team | None = None
        self._kept: Team | None = None
        self._starts = 0
        self._phase = PhaseCell(spec.phases, spec.place) if spec.settings.is_debugged else None

    @property
    def on_gpus(self) -> bool:
        """Whether its ranks may use GPUs."""
        return self._spec.shape.device != "cpu"

    @property
    def by_torchs_rules(self) -> bool:
        """Whether the running test passes if torch's own harness passes it."""
        return self._is_torchs and self._spec.settings.verdict is VerdictRule.TORCH

    # --- around a test

    def begin(self, order: RunTest, *, may_differ: bool, is_torchs: bool) -> None:
        """A test begins in this main process.

        Args:
            order: the world's.
            may_differ: whether it is marked so.
            is_torchs: whether its class is of torch's kind, whose own rules are told beside ours.
        """
        self._order, self._may_differ, self._is_torchs = order, may_differ, is_torchs
        self._launches = 0
        self._began_s = time.monotonic()

    def settle(self) -> None:
        """The test is over; ranks that it never waited for are ended, and count against it."""
        if self._team is not None:
            team, self._team = self._team, None
            attempt = self._attempt(team, ExitRule(), limit_s=0.0)
            self._watch(team, attempt, never_joined=True)
            team.dismiss(limit_s=0.0)

    # --- ranks for one test

    def start(self, size: int, body: Body) -> Sequence[Rank]:
        """Start the ranks of the running test."""

        def whole_body(rank: int, pipe: Any) -> None:
            body(rank, pipe)
            self._wait_for_gpus()

        team = self._team = Team(self._spec, size)
        self._note_launch(team, size)
        for rank in range(size):
            self._fork(team, rank, lambda rank, _channel, mine: run_once(rank, mine, whole_body, self._skips))
        return team.ranks

    def join(self, rule: ExitRule) -> None:
        """Wait for the ranks of the running test, report them, and raise what they came to."""
        team, self._team = self._team, None
        if team is None or not team.ranks:
            if self.by_torchs_rules:
                return
            raise RanksFailed(NO_RANKS)
        attempt = self._attempt(team, rule, limit_s=self._limit_s())
        records = self._watch(team, attempt)
        team.dismiss(limit_s=0.0)
        self._raise_outcome(records, rule)

    def join_foreign(
        self,
        processes: Sequence[Any],
        rule: ExitRule,
        join: Callable[[], None],
        said: Callable[[], Mapping[int, str]],
    ) -> None:
        """Ranks that the class started by itself, with ``multiprocessing``: wait its way, judge ours.

        Args:
            processes: of ``multiprocessing``, one for each rank.
            rule: which exit codes are fine.
            join: waits for them as the class does, and raises what it makes of them.
            said: the tracebacks that they sent, by process id; asked when they were waited for.
        """
        began_s = time.monotonic()
        try:
            join()
        finally:
            after_s, texts = time.monotonic() - began_s, said()
            found = [
                foreign_record(rank, process.exitcode, after_s, texts.get(process.pid, ""))
                for rank, process in enumerate(processes)
            ]
            records = tuple(read_record(record, rule, self._skips) for record in found)
            self._channel.send(RanksJoined(records=records, torch_outcome=self._by_torch(records, rule)))
        self._raise_outcome(records, rule)

    def report_passed(self, size: int) -> None:
        """So many ranks have passed, says the class, which has started them by itself and knows no more of them."""
        records = (
            RankRecord(rank=rank, end=RankEnd.REPORTED, outcome=Outcome.PASSED, phase="call")
            for rank in range(size)
        )
        self._channel.send(RanksJoined(records=tuple(records)))

    # --- ranks that are threads of this process

    def report_threads(self, size: int, raised: Sequence[tuple[int, BaseException]]) -> None:
        """Report the threads of a test as its ranks, if one has failed; a skip or a pass is the main process's to tell."""
        records = thread_records(size, raised, log=f"{self._running().folder}/main.log")
        if any(record.outcome is Outcome.FAILED for record in records):
            self._channel.send(RanksJoined(records=records, threads=True))

    # --- ranks for many tests

    def keep(
        self, owner: object, size: int, prepare: Callable[[int], None], run: Callable[[str], None]
    ) -> None:
        """Start ranks that stay, unless they are there already and well."""

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
                lambda rank, channel, mine: serve_tests(rank, channel, mine, prepare, run_whole, self._skips),
            )

    def run_kept(self, owner: object, name: str) -> None:
        """Have the kept ranks run one test; ranks that failed are replaced before the next one."""
        team = self._kept
        if team is None or team.owner != owner:
            raise RanksFailed(NO_RANKS)
        attempt = self._attempt(team, ExitRule(), limit_s=self._limit_s())
        order = self._running()
        self._note_launch(team, len(team.ranks))
        for handle in team.supervisor.handles:
            log = str(team.supervisor.logs.open(self._log(handle.rank)))
            handle.channel.send(msgspec.structs.replace(order, nodeid=name, next_nodeid=None, log=log))
        records = self._watch(team, attempt)
        if any(record.outcome is None or record.outcome.is_bad for record in records):
            team.broken = True
            self.release(None, limit_s=0.0)
        self._raise_outcome(records, ExitRule())

    def release(self, owner: object, *, limit_s: float = RANKS_LEAVE_S) -> None:
        """Let the kept ranks leave (those of this owner, or anybody's)."""
        if self._kept is not None and owner in (None, self._kept.owner):
            self._kept.dismiss(limit_s=limit_s)
            self._kept = None

    # --- inside

    def _wait_for_gpus(self) -> None:
        """In a rank whose test has passed: what still runs on its GPU may fail, and would be nobody's then."""
        if self.on_gpus and self._spec.settings.verdict is VerdictRule.STRICT:
            from disttest.runtime.rank.gpu_state import wait_for_gpus

            wait_for_gpus()

    def _running(self) -> RunTest:
        if self._order is None:
            raise RanksFailed("ranks were started while no test runs")
        return self._order

    def _log(self, rank: int) -> str:
        """Where a rank's log of the running test comes to lie, relative to the results directory."""
        return f"{self._running().folder}/rank{rank}.log"

    def _note_launch(self, team: Team, size: int) -> None:
        """Ranks that a test launches after others write into the logs of those, which say where that begins."""
        self._launches += 1
        if self._launches == 1:
            return
        logs = team.supervisor.logs
        for rank in range(size):
            logs.open(self._log(rank))
            begins = f"\n[disttest: launch {self._launches} of the test, rank {rank} of {size}]\n"
            logs.log(self._log(rank)).append(begins)

    def _limit_s(self) -> float:
        return max(0.0, self._running().limit_s - (time.monotonic() - self._began_s))

    def _fork(self, team: Team, rank: int, main: Callable[[int, Channel, Account], int]) -> None:
        ours, theirs = Channel.pair()
        foreign = [ours, self._channel, *(handle.channel for handle in team.supervisor.handles)]
        self._starts += 1
        stacks = self._spec.scratch / f"rank{rank}-{self._starts}.stacks"
        questions = stacks.with_suffix(".ask")
        spec, config, parent = self._spec, self._config, os.getpid()
        log = team.supervisor.logs.open(self._log(rank))
        board = team.board.path if team.board else None
        held = team.held
        held_at = held.path if held else None

        def be_rank() -> None:
            die_with_parent(parent)
            for channel in foreign:
                channel.close()
            mine = out_of_the_way(theirs)
            belong_to_this_process(mine)
            settle_in(config, log, stacks, spec.threads)
            flight.answer_questions(questions, rank)
            post_mortem = debug_hosted_rank(spec.settings, rank, held_at, config) if held_at else None
            watch_waits(board, rank)
            flight.note_start()
            own_account = account_for(mine, post_mortem)
            mine.send(RankReady())
            code = main(rank, mine, own_account)
            save_coverage()
            mine.send(TestDone(exit_code=code))
            leave(code)

        child = fork_child(be_rank, new_group=True)
        theirs.close()
        team.ranks.append(Rank(rank, child))
        handle = RankProcessHandle(
            rank=rank,
            channel=ours,
            child=child,
            evidence=EvidenceSource(child, stacks, questions),
            log=log,
            held=lambda: held is not None and held.is_held(rank),
        )
        team.supervisor.add(handle)

    def _attempt(self, team: Team, rule: ExitRule, *, limit_s: float) -> HostedAttempt:
        now_s = time.monotonic()
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
        attempt.waits_for_peers = self.by_torchs_rules or rule.any_code or rule.expected != 0
        return attempt

    def _watch(
        self, team: Team, attempt: HostedAttempt, *, never_joined: bool = False
    ) -> tuple[RankRecord, ...]:
        supervisor = team.supervisor
        supervisor.begin(attempt)
        with self._heeding_the_world(supervisor, attempt):
            supervisor.watch(attempt)
        attempt.hold(time.monotonic(), on=False)
        self._began_s += attempt.paused_s
        supervisor.close_logs(attempt)
        records = tuple(attempt.read(progress) for progress in attempt.ranks)
        if never_joined:
            records = tuple(map(blame_for_waiting, records))
        theirs = self._by_torch(records, attempt.rule) if attempt.ranks else None
        self._channel.send(RanksJoined(records=records, torch_outcome=theirs, deadlock=attempt.deadlock))
        return records

    def _by_torch(self, records: Sequence[RankRecord], rule: ExitRule) -> Outcome | None:
        return torch_outcome(records, rule, self._skips) if self._is_torchs else None

    @contextlib.contextmanager
    def _heeding_the_world(self, supervisor: Supervisor, attempt: HostedAttempt) -> Iterator[None]:
        """While ranks are watched, a cancelled run ends them with their stacks taken."""

        def on_message() -> None:
            for message in self._channel.receive(wait=False):
                if isinstance(message, Cancel):
                    attempt.cancel(message.reason, time.monotonic())
            if self._channel.closed_by_peer:
                supervisor.ignore(self._channel)
                attempt.cancel("the world is gone", time.monotonic())

        supervisor.watch_also(self._channel, on_message)
        try:
            yield
        finally:
            supervisor.ignore(self._channel)

    def _raise_outcome(self, records: Sequence[RankRecord], rule: ExitRule) -> None:
        if self.by_torchs_rules:
            theirs = torch_outcome(records, rule, self._skips)
            if theirs is Outcome.SKIPPED:
                raise unittest.SkipTest(records[0].message)
            if theirs is Outcome.PASSED:
                return
        bad = [record for record in records if record.outcome is None or record.outcome.is_bad]
        if bad:
            says = "; ".join(f"rank {record.rank}: {record.message or 'did not finish'}" for record in bad)
            raise RanksFailed(says)
        if words := disagreement(records, may_differ=self._may_differ):
            raise RanksFailed(words)
        if all(record.outcome is Outcome.SKIPPED for record in records):
            raise unittest.SkipTest(records[0].message)
