"""Starts ranks for a test's main process, supervises them, and tells both the test and the world."""

from __future__ import annotations

import logging
import os
import signal
import time
import unittest
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from disttest.host.process import (
    Child,
    Exit,
    die_with_parent,
    end_all,
    fork_child,
    forked_children,
    kill_descendants,
    leave,
    signal_name,
)
from disttest.model import Outcome, RankEnd, RankRecord, TestCase, VerdictRule
from disttest.results.exit_codes import (
    NEVER_JOINED,
    NO_RANKS,
    TEST_ERROR,
    ExitRule,
    agree_on_skips,
    read_record,
    torch_outcome,
)
from disttest.running import flight, hygiene
from disttest.running.attempt import Attempt, Progress
from disttest.running.child import (
    belong_to_this_process,
    out_of_the_way,
    redirect_output,
    register_stacks,
    renew_libraries,
)
from disttest.running.evidence import EvidenceSource
from disttest.running.hosting.account import Account, ChannelPipe, run_to_exit_code
from disttest.running.protocol import Channel, Leave, PhaseBegan, RankReady, RanksJoined, RunTest, TestDone
from disttest.running.rank import RankSpec, next_order
from disttest.running.seats import TERM_GRACE_S, Seat, Supervisor
from disttest.testing.hosting import Body, RanksFailed, provide_host

account: Account | None = None
"""In a rank: where the patched classes report what the test raised."""

_LEAVE_LIMIT_S = 5.0


class HostedAttempt(Attempt):
    """An attempt whose ranks leave by themselves, with codes that the test may have asked for."""

    rule: ExitRule = ExitRule()
    skips: Mapping[int, str] = MappingProxyType({})
    patient: bool = False
    """Torch's way: only an error ends the others early, a death does not."""

    def note_death(self, progress: Progress) -> None:
        """A rank ended: a failure unless its code says otherwise."""
        record = self.read(progress)
        died = record.outcome is None or record.outcome.is_bad
        if died and not self.patient:
            self.note_failure(progress.died_at_s)

    def read(self, progress: Progress) -> RankRecord:
        """This rank's part, its exit code understood."""
        return read_record(progress.record(self.started_s), self.rule, self.skips)


class Rank:
    """A rank as tests see it: the part of ``multiprocessing.Process`` that they look at."""

    def __init__(self, rank: int, child: Child) -> None:
        self.name = f"process {rank}"
        self.pid = child.pid
        self._child = child
        self._ended: Exit | None = None

    @property
    def exitcode(self) -> int | None:
        """None while it lives; minus the signal's number where one ended it."""
        ended = self._ended = self._ended or self._child.poll()
        if ended is None:
            return None
        return ended.code if ended.signal is None else -ended.signal

    def is_alive(self) -> bool:
        """Whether it lives."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if self.exitcode is None:
            self._child.wait(timeout if timeout is not None else float(10**6))

    def terminate(self) -> None:
        """Ask it to end; fine if it has."""
        if self.exitcode is None:
            self._child.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it; fine if it has ended."""
        if self.exitcode is None:
            self._child.signal(signal.SIGKILL)


class Team:
    """The living ranks of a main process."""

    def __init__(self, spec: RankSpec) -> None:
        self.supervisor = Supervisor(results=spec.results, log_limit=spec.log_limit, grace_s=spec.grace_s)
        self.ranks: list[Rank] = []
        self.owner: object = None
        self.broken = False
        self.before = forked_children()

    def dismiss(self, *, limit_s: float = _LEAVE_LIMIT_S) -> None:
        """Let them leave by themselves within the limit, end the rest, and kill what they left behind."""
        seats = self.supervisor.seats
        for seat in seats:
            seat.channel.send(Leave())
        deadline = time.monotonic() + limit_s
        for seat in seats:
            seat.child.wait(deadline - time.monotonic())
        end_all([seat.child for seat in seats], term_grace_s=TERM_GRACE_S)
        for rank in self.ranks:
            _ = rank.exitcode  # remembered: tests may look at it later
        self.supervisor.close()
        if forked_children() - self.before:
            kill_descendants(spare=self.before)


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
        self._began_s = 0.0
        self._team: Team | None = None
        self._kept: Team | None = None
        self._starts = 0

    # --- around a test

    def begin(self, order: RunTest) -> None:
        """A test begins in this main process."""
        self._order = order
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

        team = self._team = Team(self._spec)
        for rank in range(size):
            self._fork(
                team, rank, lambda rank, channel, mine: _run_once(rank, channel, mine, body, self._skips)
            )
        return team.ranks

    def join(self, rule: ExitRule) -> None:
        """Wait for the ranks of the running test, report them, and raise what they came to."""
        team, self._team = self._team, None
        if team is None or not team.ranks:
            raise RanksFailed(NO_RANKS)
        attempt = self._attempt(team, rule, limit_s=self._limit_s())
        records = self._watch(team, attempt)
        team.dismiss(limit_s=0.0)
        self._raise_outcome(records, rule)

    def join_foreign(self, processes: Sequence[Any], rule: ExitRule, join: Callable[[], None]) -> None:
        """Ranks that the class started by itself, with ``multiprocessing``: wait its way, judge ours.

        Args:
            processes: of ``multiprocessing``, one for each rank.
            rule: which exit codes are fine.
            join: waits for them as the class does, and raises what it makes of them.
        """
        began_s = time.monotonic()
        try:
            join()
        finally:
            codes = [process.exitcode for process in processes]
            records = agree_on_skips(
                [
                    read_record(_foreign_record(rank, code, time.monotonic() - began_s), rule, self._skips)
                    for rank, code in enumerate(codes)
                ]
            )
            theirs = torch_outcome(records, rule, self._skips)
            self._channel.send(RanksJoined(records=records, torch_outcome=theirs))
        self._raise_outcome(records, rule)

    # --- ranks for many tests

    def keep(
        self, owner: object, size: int, prepare: Callable[[int], None], run: Callable[[str], None]
    ) -> None:
        """Start ranks that stay, unless they are there already and well."""
        if self._kept is not None and self._kept.owner is owner and not self._kept.broken:
            return
        self.release(None)
        team = self._kept = Team(self._spec)
        team.owner = owner
        for rank in range(size):
            self._fork(
                team,
                rank,
                lambda rank, channel, mine: _serve_tests(rank, channel, mine, prepare, run, self._skips),
            )

    def run_kept(self, owner: object, name: str) -> None:
        """Have the kept ranks run one test; ranks that failed are replaced before the next one."""
        team = self._kept
        if team is None or team.owner is not owner:
            raise RanksFailed(NO_RANKS)
        attempt = self._attempt(team, ExitRule(), limit_s=self._limit_s())
        order = self._running()
        for seat in team.supervisor.seats:
            log = str(self._log(seat.rank))
            seat.channel.send(msgspec.structs.replace(order, nodeid=name, next_nodeid=None, log=log))
        records = self._watch(team, attempt)
        if any(record.outcome is None or record.outcome.is_bad for record in records):
            team.broken = True
            self.release(None, limit_s=0.0)
        self._raise_outcome(records, ExitRule())

    def release(self, owner: object, *, limit_s: float = _LEAVE_LIMIT_S) -> None:
        """Let the kept ranks leave (those of this owner, or anybody's)."""
        if self._kept is not None and owner in (None, self._kept.owner):
            self._kept.dismiss(limit_s=limit_s)
            self._kept = None

    # --- inside

    def _running(self) -> RunTest:
        if self._order is None:
            raise RanksFailed("ranks were started while no test runs")
        return self._order

    def _log(self, rank: int) -> Path:
        return Path(self._running().log).with_name(f"rank{rank}.log")

    def _limit_s(self) -> float:
        return max(0.0, self._running().limit_s - (time.monotonic() - self._began_s))

    def _fork(self, team: Team, rank: int, main: Callable[[int, Channel, Account], int]) -> None:
        ours, theirs = Channel.pair()
        foreign = [ours, self._channel, *(seat.channel for seat in team.supervisor.seats)]
        self._starts += 1
        stacks = self._spec.scratch / f"rank{rank}-{self._starts}.stacks"
        questions = stacks.with_suffix(".ask")
        spec, config, log, parent = self._spec, self._config, self._log(rank), os.getpid()

        def be_rank() -> None:
            die_with_parent(parent)
            for channel in foreign:
                channel.close()
            mine = out_of_the_way(theirs)
            belong_to_this_process(mine)
            _settle_in(config, log, stacks, spec.threads)
            flight.answer_questions(questions, rank)
            flight.note_start()
            own_account = _account_for(mine)
            mine.send(RankReady())
            code = main(rank, mine, own_account)
            mine.send(TestDone(exit_code=code))
            leave(code)

        child = fork_child(be_rank)
        theirs.close()
        team.ranks.append(Rank(rank, child))
        seat = Seat(
            rank=rank, channel=ours, child=child, evidence=EvidenceSource(child, stacks, questions), log=log
        )
        team.supervisor.add(seat)

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
                Progress(
                    rank=seat.rank, pid=seat.child.pid, log=self._relative(self._log(seat.rank)), phase="call"
                )
                for seat in team.supervisor.seats
            ],
        )
        attempt.rule, attempt.skips = rule, self._skips
        attempt.patient = self._spec.verdict is VerdictRule.TORCH or rule.any_code or rule.expected != 0
        return attempt

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._spec.results).as_posix()

    def _watch(
        self, team: Team, attempt: HostedAttempt, *, never_joined: bool = False
    ) -> tuple[RankRecord, ...]:
        supervisor = team.supervisor
        supervisor.begin(attempt)
        supervisor.watch(attempt)
        supervisor.close_logs(attempt)
        readings = [attempt.read(progress) for progress in attempt.ranks]
        if never_joined:
            readings = [_blame_for_waiting(reading) for reading in readings]
        records = agree_on_skips(readings)
        theirs = torch_outcome(readings, attempt.rule, self._skips) if attempt.ranks else None
        self._channel.send(RanksJoined(records=records, torch_outcome=theirs))
        return records

    def _raise_outcome(self, records: Sequence[RankRecord], rule: ExitRule) -> None:
        if self._spec.verdict is VerdictRule.TORCH:
            theirs = torch_outcome(records, rule, self._skips)
            if theirs is Outcome.SKIPPED:
                raise unittest.SkipTest(records[0].message)
            if theirs is Outcome.PASSED:
                return
        bad = [record for record in records if record.outcome is None or record.outcome.is_bad]
        if bad:
            says = "; ".join(f"rank {record.rank}: {record.message or 'did not finish'}" for record in bad)
            raise RanksFailed(says)
        if records[0].outcome is Outcome.SKIPPED:
            raise unittest.SkipTest(records[0].message)


def _foreign_record(rank: int, code: int | None, after_s: float) -> RankRecord:
    if code is None:
        return RankRecord(rank=rank, end=RankEnd.KILLED, phase="call", hung=True, message="did not end")
    if code < 0:
        message = f"was killed by {signal_name(-code)}"
        return RankRecord(
            rank=rank,
            end=RankEnd.SIGNALLED,
            signal=-code,
            phase="call",
            message=message,
            failed_after_s=after_s,
        )
    return RankRecord(
        rank=rank,
        end=RankEnd.REPORTED,
        outcome=Outcome.FAILED if code == TEST_ERROR else Outcome.PASSED,
        exit_code=code,
        phase="call",
        message=f"left with exit code {code}; its own output says why" if code == TEST_ERROR else "",
        failed_after_s=after_s if code else None,
    )


def _blame_for_waiting(record: RankRecord) -> RankRecord:
    return msgspec.structs.replace(record, outcome=Outcome.FAILED, hung=False, message=NEVER_JOINED)


def _settle_in(config: pytest.Config, log: Path, stacks: Path, threads: int) -> None:
    """What a freshly forked rank does first."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    provide_host(None)
    redirect_output(config, log)
    register_stacks(stacks)
    _forget_log_capture()
    renew_libraries(threads)
    hygiene.reseed(int.from_bytes(os.urandom(4), "little"))


def _forget_log_capture() -> None:
    """Take pytest's capturing handlers off the root logger: a rank's records belong into its own log."""
    from _pytest.logging import LogCaptureHandler

    for handler in list(logging.root.handlers):
        if isinstance(handler, LogCaptureHandler) or type(handler).__module__ == "_pytest.logging":
            logging.root.removeHandler(handler)


def _account_for(channel: Channel) -> Account:
    global account
    account = Account(channel)
    return account


def _run_once(rank: int, channel: Channel, mine: Account, body: Body, skips: dict[int, str]) -> int:
    channel.send(PhaseBegan(phase="call"))
    pipe = ChannelPipe(mine)
    code = run_to_exit_code(lambda: body(rank, pipe), mine)
    mine.report_end(code, skips)
    return code


def _serve_tests(
    rank: int,
    channel: Channel,
    mine: Account,
    prepare: Callable[[int], None],
    run: Callable[[str], None],
    skips: dict[int, str],
) -> int:
    """Run one test after another until told to leave; a failed preparation answers for every test."""
    unprepared = _attempt_to(lambda: prepare(rank))
    while (order := next_order(channel)) is not None:
        _redirect(order)
        flight.note_start()
        mine = _account_for(channel)
        error = unprepared or _attempt_to(lambda: run(order.nodeid))
        mine.report_kept(error, skips)
        channel.send(TestDone())
    return 0


def _attempt_to(action: Callable[[], None]) -> BaseException | None:
    try:
        action()
    except BaseException as error:  # noqa: BLE001  # it is reported as the outcome of the test
        return error
    return None


def _redirect(order: RunTest) -> None:
    fd = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    for target in (1, 2):
        os.dup2(fd, target)
    os.close(fd)


__all__ = ["ForkHost", "Rank", "account"]
