"""The ranks of a main process: the living ones, and the interpretation of their exits."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from disttest.host.descendants import kill_descendants
from disttest.host.proc import forked_children
from disttest.host.process import Child, Exit, end_all, signal_name, wait_all
from disttest.limits import RANK_TERM_S, RANKS_LEAVE_S
from disttest.model import Outcome, RankEnd, RankRecord
from disttest.outgoing import shorten
from disttest.plugins.launching_classes.inheritance import Inheritance
from disttest.results.exit_codes import TEST_ERROR, ExitRule, read_record
from disttest.results.headline import raised_line
from disttest.runtime.messages.phases import PhaseBoard, PhaseCell
from disttest.runtime.messages.protocol import Leave, Variables, clean_text
from disttest.runtime.rank.log_capture import captured_loggers
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.runtime.world.attempt import Attempt, RankProgress
from disttest.runtime.world.rank_handles import Supervisor


class HostedAttempt(Attempt):
    """An attempt whose ranks exit on their own, with codes that the test may have requested."""

    rule: ExitRule = ExitRule()
    skips: Mapping[int, str] = MappingProxyType({})
    waits_for_peers: bool = False
    """Whether only an error ends the other ranks early, and a crash does not, as with torch's harness."""
    main: PhaseCell | None = None
    """Cell in which the main process reports that one of its ranks is debugged, which suspends its own limit, too."""

    def hold(self, now_s: float, *, on: bool) -> None:
        """Suspend the limits while a rank is debugged."""
        super().hold(now_s, on=on)
        if self.main is not None:
            self.main.hold(on)

    def note_death(self, progress: RankProgress) -> None:
        """Handle the exit of a rank: a failure unless its code is allowed."""
        record = self.read(progress)
        died = record.outcome is None or record.outcome.is_bad
        if died and not self.waits_for_peers:
            self.note_end(progress)

    def read(self, progress: RankProgress) -> RankRecord:
        """Return this rank's record with its exit code interpreted."""
        return read_record(progress.record(self.started_s), self.rule, self.skips)


class Rank:
    """A rank with the part of the interface of ``multiprocessing.Process`` that tests use."""

    def __init__(self, rank: int, child: Child) -> None:
        self.name = f"process {rank}"
        self.pid = child.pid
        self._child = child
        self._ended: Exit | None = None
        self._code: int | None = None

    @property
    def exitcode(self) -> int | None:
        """Exit code; None while it lives, negative for a signal."""
        if self._code is not None:
            return self._code
        ended = self._ended = self._ended or self._child.poll()
        return None if ended is None else ended.returncode

    def note_end(self, code: int) -> None:
        """Set the exit code for the current test; the process goes on with other tests."""
        self._code = code

    def is_alive(self) -> bool:
        """Return whether it is alive."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its exit."""
        if self.exitcode is None:
            self._child.wait(timeout if timeout is not None else float(10**6))

    def terminate(self) -> None:
        """Send SIGTERM, unless it has exited."""
        if self.exitcode is None:
            self._child.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless it has exited."""
        if self.exitcode is None:
            self._child.signal(signal.SIGKILL)


class Team:
    """The living ranks of a main process."""

    def __init__(self, spec: RankSpec, size: int) -> None:
        self.supervisor = Supervisor(spec.home, spec.settings)
        # torch allows a class without ranks
        self.watches = self.supervisor.start_watches(size) if size else {}
        self.held = PhaseBoard(size) if spec.settings.is_debugged and size else None
        """Cells that show which of its ranks is debugged."""
        self.ranks: list[Rank] = []
        self.owner: object = None
        self.broken = False
        self.before = forked_children()
        self.captured = captured_loggers()
        """Loggers that pytest listens to in this process, which its ranks must detach."""

    def is_alive(self) -> bool:
        """Return whether none of its processes has exited."""
        return all(handle.child.poll() is None for handle in self.supervisor.handles)

    def reset_handles(self) -> None:
        """Reset the handles for another test, in which its ranks have not exited."""
        self.ranks = [Rank(handle.rank, handle.child) for handle in self.supervisor.handles]

    def stop(self, *, limit_s: float = RANKS_LEAVE_S) -> None:
        """Let the ranks exit within the limit, kill the rest, and kill the processes that they left behind."""
        handles = self.supervisor.handles
        for handle in handles:
            handle.channel.send(Leave())
        # All leave at the same time, since they may destroy a group together.
        wait_all((handle.child for handle in handles), limit_s)
        end_all([handle.child for handle in handles], term_grace_s=RANK_TERM_S)
        for rank in self.ranks:
            _ = rank.exitcode  # stores the code: tests may read it later
        self.supervisor.close()
        if self.held is not None:
            self.held.close()
        # Orphans of ranks become children of the main process, which adopts them.
        if forked_children() - self.before:
            kill_descendants(spare_trees=tuple(self.before))


def foreign_record(rank: int, code: int | None, after_s: float, traceback: str = "") -> RankRecord:
    """Return the record of a rank started by its class, from its exit code (None: running) and its traceback."""
    if code is None:
        return RankRecord(rank=rank, end=RankEnd.KILLED, phase="call", hung=True, message="did not end")
    # multiprocessing reports a signal as its negative number.
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
    unsaid = f"exited with code {code}; its output gives the reason"
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
    """Return the record of a rank that its test never waited for."""
    message = "the test ended without waiting for this rank"
    return msgspec.structs.replace(
        record, outcome=Outcome.FAILED, hung=False, message=message, not_awaited=True
    )


class RanksWereUsed(Exception):
    """A test has failed in reused ranks: their outcome does not count."""


class RankRequest(NamedTuple):
    """A test's request for ranks."""

    cls: type
    own_classes: tuple[type, ...]
    """The class and its bases, without torch's."""
    size: int
    keywords: tuple[tuple[str, Any], ...]
    """Keyword arguments of the method that each rank runs."""
    method: str
    file_name: str
    """Path of the file for the rendezvous."""
    run: Callable[[int, str, str, object], None]
    """Called in each rank, with its number, the method, the file and its pipe."""

    @property
    def sharers(self) -> object:
        """Key of the tests that may share ranks: this class, started in this way."""
        return self.cls, self.size, self.keywords


class ReusedTeam:
    """The ranks that are reused, if there are any."""

    def __init__(self) -> None:
        self.team: Team | None = None
        self.outdated = ""
        """Name of a difference between the state of new ranks and that of the living ones."""
        self._inheritance: Inheritance | None = None
        self._tests = 0

    def may_run(self, request: RankRequest) -> bool:
        """Return whether the living ranks may run this test as well. If not, :attr:`outdated` may give the reason."""
        team, inheritance = self.team, self._inheritance
        self.outdated = ""
        if team is None or inheritance is None or team.owner != request.sharers or not team.is_alive():
            return False
        self.outdated = inheritance.changed()
        return not self.outdated

    def replace(self, request: RankRequest, team: Team) -> Inheritance:
        """Replace the ranks by a team that is about to be forked; return its inheritance."""
        self.team, self._tests = team, 0
        team.owner = request.sharers
        self._inheritance = Inheritance(request.own_classes)
        return self._inheritance

    def begin_test(self, team: Team) -> Variables:
        """Start one more test in the team; return the environment variables that have changed since."""
        self._tests += 1
        team.reset_handles()
        return self._inheritance.take_variables() if self._inheritance else ()

    def must_be_run_again(self, attempt: HostedAttempt, *, is_good: bool) -> bool:
        """Return whether the outcome must be ignored, because reuse of the ranks may have caused it.

        Args:
            attempt: the attempt in the reused ranks.
            is_good: whether it passed, or all of them skipped.
        """
        cleaning = (rank.verdict_report for rank in attempt.ranks if rank.done is None)
        # A failure of the clean-up counts as well: a new rank ends its process instead of restoring state.
        was_reused = self._tests > 1 or any(each and not each.outcome.is_failure for each in cleaning)
        return was_reused and not is_good and not attempt.cancelled

    def finish_test(self, attempt: HostedAttempt) -> Team | None:
        """Finish a test; return the team if it must not be used again."""
        team = self.team
        assert team is not None
        for rank, progress in zip(team.ranks, attempt.ranks, strict=True):
            if progress.done is not None and progress.done.stays:
                rank.note_end(progress.done.exit_code or 0)
        if all(progress.done is not None and progress.done.stays for progress in attempt.ranks):
            return None
        self.team = None
        return team
