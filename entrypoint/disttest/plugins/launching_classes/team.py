"""The ranks of a main process: the living ones, and what their ends mean."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from disttest.clock import monotonic
from disttest.cut_texts import shorten
from disttest.host.descendants import kill_descendants
from disttest.host.proc import forked_children
from disttest.host.process import Child, Exit, end_all, signal_name
from disttest.limits import RANK_TERM_S, RANKS_LEAVE_S
from disttest.model import Outcome, RankEnd, RankRecord
from disttest.results.exit_codes import NEVER_JOINED, TEST_ERROR, ExitRule, read_record
from disttest.results.headline import raised_line
from disttest.runtime.messages.phases import PhaseBoard, PhaseCell
from disttest.runtime.messages.protocol import Leave, clean_text
from disttest.runtime.rank.log_capture import captured_loggers
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.runtime.world.attempt import Attempt, RankProgress
from disttest.runtime.world.rank_handles import Supervisor


class HostedAttempt(Attempt):
    """An attempt whose ranks leave by themselves, with codes that the test may have asked for."""

    rule: ExitRule = ExitRule()
    skips: Mapping[int, str] = MappingProxyType({})
    waits_for_peers: bool = False
    """Torch's way: only an error ends the others early, a death does not."""
    main: PhaseCell | None = None
    """Where the main process says that one of its ranks is debugged, so that its own limit stands still, too."""

    def hold(self, now_s: float, *, on: bool) -> None:
        """Have the limits stand still while a rank is debugged."""
        super().hold(now_s, on=on)
        if self.main is not None:
            self.main.hold(on)

    def note_death(self, progress: RankProgress) -> None:
        """A rank ended: a failure unless its code says otherwise."""
        record = self.read(progress)
        died = record.outcome is None or record.outcome.is_bad
        if died and not self.waits_for_peers:
            self.note_end(progress)

    def read(self, progress: RankProgress) -> RankRecord:
        """This rank's part, its exit code understood."""
        return read_record(progress.record(self.started_s), self.rule, self.skips)


class Rank:
    """A rank as tests see it: the part of ``multiprocessing.Process`` that they look at."""

    def __init__(self, rank: int, child: Child) -> None:
        self.name = f"process {rank}"
        self.pid = child.pid
        self._child = child
        self._ended: Exit | None = None
        self._code: int | None = None

    @property
    def exitcode(self) -> int | None:
        """None while it lives; minus the signal's number where one ended it."""
        if self._code is not None:
            return self._code
        ended = self._ended = self._ended or self._child.poll()
        return None if ended is None else ended.returncode

    def note_end(self, code: int) -> None:
        """For the test it has ended, with this code; its process runs others."""
        self._code = code

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

    def __init__(self, spec: RankSpec, size: int) -> None:
        self.supervisor = Supervisor(spec.home, spec.settings)
        self.watches = self.supervisor.start_watches(size) if size else {}  # torch lets a class have no ranks
        self.held = PhaseBoard(size) if spec.settings.is_debugged and size else None
        """Which of its ranks somebody debugs."""
        self.ranks: list[Rank] = []
        self.owner: object = None
        self.broken = False
        self.before = forked_children()
        self.captured = captured_loggers()
        """Those that pytest listens to here, which its ranks are to forget."""

    def is_alive(self) -> bool:
        """Whether no process of it has ended."""
        return all(handle.child.poll() is None for handle in self.supervisor.handles)

    def show_anew(self) -> None:
        """Another test begins: for that one, its ranks have not ended."""
        self.ranks = [Rank(handle.rank, handle.child) for handle in self.supervisor.handles]

    def dismiss(self, *, limit_s: float = RANKS_LEAVE_S) -> None:
        """Let them leave by themselves within the limit, end the rest, and kill what they left behind."""
        handles = self.supervisor.handles
        for handle in handles:
            handle.channel.send(Leave())
        deadline = monotonic() + limit_s
        for handle in handles:
            handle.child.wait(deadline - monotonic())
        end_all([handle.child for handle in handles], term_grace_s=RANK_TERM_S)
        for rank in self.ranks:
            _ = rank.exitcode  # remembered: tests may look at it later
        self.supervisor.close()
        if self.held is not None:
            self.held.close()
        if forked_children() - self.before:
            kill_descendants(spare=self.before)


def foreign_record(rank: int, code: int | None, after_s: float, traceback: str = "") -> RankRecord:
    """What a rank that we did not start came to, by its exit code (None: it still runs) and what it sent."""
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
    failed = code == TEST_ERROR
    unsaid = f"exited with code {code}; its own output says why"
    return RankRecord(
        rank=rank,
        end=RankEnd.REPORTED,
        outcome=Outcome.FAILED if failed else Outcome.PASSED,
        exit_code=code,
        phase="call",
        message=(raised_line(clean_text(traceback))[:2000] or unsaid) if failed else "",
        details=shorten(clean_text(traceback)) if failed else "",
        failed_after_s=after_s if code else None,
    )


def blame_for_waiting(record: RankRecord) -> RankRecord:
    """The record of a rank that its test never waited for."""
    return msgspec.structs.replace(record, outcome=Outcome.FAILED, hung=False, message=NEVER_JOINED)
