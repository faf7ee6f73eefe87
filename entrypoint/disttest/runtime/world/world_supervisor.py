"""Process of a world: start its ranks, give them one test after another, judge the results, end the ranks.

It is a session leader and adopts every process that its ranks leave behind. It has one Python thread and one loop,
which waits for messages, for deaths and for time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from disttest.clock import monotonic
from disttest.errors import PluginError
from disttest.host.compute_threads import asked_threads_of
from disttest.host.descendants import children_of, kill_descendants, name_strays
from disttest.host.process import Child, SignalLine, adopt_orphans, end_all
from disttest.host.process_limits import lack_for_ranks
from disttest.limits import (
    BROKEN_LEAVE_S,
    LAST_TEAR_DOWN_S,
    ORPHANS_S,
    RANKS_COLLECT_S,
    RANKS_LEAVE_S,
    TICK_S,
    WORLD_START_S,
)
from disttest.model import ALONE, FEW_RANKS, TestCase, TestResult, WorldKind, WorldShape, rank_names
from disttest.outgoing import outgoing
from disttest.plugin_manager import blaming, plugin_manager
from disttest.runtime.messages.phases import PhaseBoard
from disttest.runtime.messages.protocol import (
    Cancel,
    Channel,
    RunTest,
    TestBegan,
    TestJudged,
    WorldClosed,
    WorldOrder,
)
from disttest.runtime.rank.rank_spec import RankSpec
from disttest.runtime.world.attempt import Attempt, RankProgress, attempt_type
from disttest.runtime.world.dismissal import dismiss, late_deaths
from disttest.runtime.world.evidence import EvidenceSource
from disttest.runtime.world.judged_attempt import JudgedAttempt
from disttest.runtime.world.judging import judge_with_plugins, representing_reports
from disttest.runtime.world.rank_handles import RankProcessHandle, Supervisor
from disttest.runtime.world.store import has_store, host_store, open_rendezvous
from disttest.runtime.world.world_watch import WorldWatch

RankStarter = Callable[[RankSpec, Channel, Sequence[int]], Child]
"""Starts a rank from its specification, its end of the channel, and the descriptors that it must close."""


def make_world(
    order: WorldOrder, controller: Channel, start_rank: RankStarter, clock: Callable[[], float]
) -> WorldSupervisor:
    """Create the supervisor class that these tests need."""
    kind = plugin_manager().call("disttest_make_world", order=order) or WorldSupervisor
    world: WorldSupervisor = kind(order, controller, start_rank, clock)
    return world


class WorldSupervisor:
    """Supervisor of one world. :meth:`run` is the whole life of the process."""

    def __init__(
        self, order: WorldOrder, controller: Channel, start_rank: RankStarter, clock: Callable[[], float]
    ) -> None:
        self._order = order
        self._controller = controller
        self._start_rank = start_rank
        self._clock = clock
        self._ranks = Supervisor(order.home, order.settings)
        self._ranks.on_new_start = self._on_new_start
        self._phases = PhaseBoard(self._shape.size)
        # Plugin name -> data for its part in each rank.
        self._watches: dict[str, Any] = {}
        self._reason = ""
        # Whether the last judged test failed.
        self._has_failed = False
        self._abandoned = False
        # Ranks that did not leave on request.
        self._stuck: frozenset[int] = frozenset()
        # Node id of each started test with its start on the monotonic clock.
        self._began: list[tuple[str, float]] = []
        self._store: Any = None
        # Plugin name -> its watch over the machine.
        self._world_watches = plugin_manager().named(
            "disttest_watch_world", WorldWatch, results=order.home.now
        )
        self._looking = dict(self._world_watches)
        self._plugin_error = ""

    def run(self) -> None:
        """Start the ranks, run tests until one breaks the world, end all processes, report the end."""
        # Before the first fork: a helper whose rank has died is then a child of this process, which finds
        # and ends it.
        adopt_orphans()
        # Ctrl-C reaches the controller, which cancels each world by a message.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # A signalfd names the sender, so a test that signals its parent can be blamed for it.
        terminations = SignalLine(signal.SIGTERM)
        self._ranks.loop.watch(terminations, lambda: self._on_sigterm(terminations.read()))
        self._ranks.loop.watch(self._controller, self._on_controller)
        for watch in self._watches_with_fd():
            self._ranks.loop.watch(watch, self._look_around)
        # A watch may rest although its descriptor is readable; the tick makes up for that.
        self._ranks.on_tick = self._look_around
        try:
            self._start_ranks()
            self._run_tests()
        except BaseException:
            # Any message from here could be wrong. End all processes, and let the controller blame this world.
            self._abandoned = True
            self._close()
            raise
        self._close()

    # --- starting

    def _start_ranks(self) -> None:
        if lack := lack_for_ranks(len(self._own_ranks())):
            self._reason = lack
            return
        # Before the first fork: the environment of each rank has the port.
        listener = self._listen()
        if self._kind is WorldKind.RANKS and not self._order.partition:
            self._watches = self._ranks.start_watches(self._shape.size)
        for rank in self._own_ranks():
            self._ranks.add(self._start_one(rank, listener))
        # After the forks: a fork would not have the server's thread, but might have a lock that the thread
        # held.
        self._store = host_store(listener)
        deadline = monotonic() + self._order.settings.unless_debugged(self._start_limit_s())
        while not all(handle.ready or handle.gone for handle in self._ranks.handles):
            if monotonic() > deadline or self._reason:
                break
            self._ranks.loop.wait(TICK_S)

    def _start_limit_s(self) -> float:
        """How long ranks may take to be ready. Those that collect run code of tests, which has the limit of the first test."""
        if not self._order.settings.ranks_collect:
            return WORLD_START_S
        return min(WORLD_START_S, max(RANKS_COLLECT_S, self._order.tests[0].timeout_s))

    def _listen(self) -> socket.socket | None:
        """Open the rendezvous socket on a port of the kernel's choice; None where another node hosts it."""
        return open_rendezvous()

    def _own_ranks(self) -> range:
        """The ranks that this process starts."""
        return range(self._shape.size if self._kind is WorldKind.RANKS else 1)

    def _master_port(self, listener: socket.socket | None) -> int:
        return listener.getsockname()[1] if listener is not None and has_store() else 0

    def _start_one(self, rank: int, listener: socket.socket | None) -> RankProcessHandle:
        order = self._order
        scratch = Path(order.scratch_dir)
        spec = RankSpec(
            rank=rank,
            shape=self._shape,
            world_id=order.world_id,
            world_pid=os.getpid(),
            master_port=self._master_port(listener),
            devices=order.devices,
            defaults=order.defaults,
            failed_before=order.failed_before.get(rank, 0),
            stacks=scratch / f"rank{rank}.stacks",
            questions=scratch / f"rank{rank}.ask",
            phases=self._phases.path,
            watches=self._watches,
            scratch=scratch / f"rank{rank}",
            log=self._ranks.logs.divert(scratch / f"rank{rank}.log"),
            settings=order.settings,
            # The user's value wins, as under torchrun.
            threads=asked_threads_of("OMP_NUM_THREADS") or order.threads,
            home=order.home,
            kind=self._kind,
            isolation=order.tests[0].isolation,
            partition=order.partition,
            settled=order.settled,
        )
        ours, theirs = Channel.pair()
        # A descriptor that stays open in another rank would keep the end of a channel from being seen.
        not_its_own = [ours.fileno(), self._controller.fileno()]
        not_its_own += [listener.fileno()] if listener is not None else []
        not_its_own += [handle.channel.fileno() for handle in self._ranks.handles]
        child = self._start_rank(spec, theirs, not_its_own)
        # The rank has its copy. With this one open, the end of the rank would not close the channel.
        theirs.close()
        return RankProcessHandle(
            rank=rank,
            channel=ours,
            child=child,
            evidence=EvidenceSource(child, spec.stacks, spec.questions),
            log=spec.log,
            phase=lambda: self._phases.read(spec.place),
            xfail=lambda: self._phases.expects_failure(spec.place),
            xfail_by_assertion=lambda: self._phases.expects_assertion(spec.place),
            held=lambda: self._phases.is_held(spec.place),
        )

    # --- running

    def _run_tests(self) -> None:
        order = self._order
        for index, test in enumerate(order.tests):
            # `_may_run` first: where a world spans nodes it waits, and the world may be cancelled meanwhile.
            if not self._may_run(index) or self._reason or self._abandoned:
                return
            following = order.tests[index + 1].nodeid if index + 1 < len(order.tests) else None
            attempt = self._begin(test, index, following)
            # Files take longer to create than a small test runs, so this overlaps with the test.
            if following:
                self._ranks.logs.prepare(self._logs_of(index + 1))
            self._ranks.watch(attempt)
            judged = self._judged(attempt)
            result = self._judge(judged)
            # Ranks with different calls may have left messages that the next test would receive.
            is_good = self._is_healthy(attempt) and not result.outcome.is_bad and not result.findings
            self._has_failed = result.outcome.is_bad
            # The world that replaces this one may use the same folder as soon as the controller knows.
            if not is_good:
                self._ranks.logs.withdraw()
            self._ranks.close_logs(attempt)
            self._look_around(at_once=True)
            self._report(attempt, result, representing_reports(attempt, result) if judged.speaks else ())
            # A rank that died after its last message is noticed here, before the next test is assigned to
            # it.
            self._ranks.loop.wait(0)
            if not is_good or any(handle.gone for handle in self._ranks.handles):
                return
            self._delete_keys(attempt)

    def _on_new_start(self, attempt: Attempt) -> None:
        """Restart the time limit: the main process runs the test once more, in new ranks."""
        attempt.start_again(monotonic())
        self._controller.send(TestBegan(nodeid=attempt.test.nodeid, again=True))

    def _delete_keys(self, attempt: Attempt) -> None:
        """Delete the keys that a test left in the store.

        The world deletes them, because it alone knows that no rank is still in this test or already in the next.
        """
        done = [progress.done for progress in attempt.ranks if progress.done]
        # Several ranks may list the same key.
        for key in {key for each in done for key in each.store_keys}:
            self._store.delete_key(key)

    def _may_run(self, index: int) -> bool:
        """Whether to run the next test; waits for the other nodes if the world spans several."""
        del index
        return True

    def _new_attempt(self, **given: Any) -> Attempt:
        return attempt_type(given["test"])(**given)

    def _scratch(self, generation: int) -> Path:
        """The directory shared by the ranks of a test."""
        return Path(self._order.scratch_dir) / f"shared-{generation}"

    def _folder_of(self, index: int) -> str:
        """Final folder of a test's logs, relative to the results directory."""
        return self._order.tests[index].log_folder(self._order.attempts[index])

    def _logs_of(self, index: int) -> list[str]:
        return [f"{self._folder_of(index)}/{self._log_name(handle.rank)}" for handle in self._ranks.handles]

    def _begin(self, test: TestCase, index: int, following: str | None) -> Attempt:
        logs = self._logs_of(index)
        self._ranks.logs.claim(logs)
        ranks = [
            RankProgress(rank=handle.rank, pid=handle.child.pid, log=log)
            for handle, log in zip(self._ranks.handles, logs, strict=True)
        ]
        number = self._order.attempts[index]
        attempt = self._new_attempt(
            test=test, number=number, started_s=monotonic(), started_at_s=self._clock(), ranks=ranks
        )
        self._began.append((test.nodeid, attempt.started_s))
        # Before the order is sent: a rank writes its first phase as soon as it has the order.
        self._phases.reset()
        # Before `agree_on`, whose findings are failures of this attempt.
        self._ranks.begin(attempt)
        if self._ranks.agree_on(test.nodeid):
            self._give_out(attempt, index, following)
        # Sent last: it wakes the controller, which would take a processor from the waiting ranks.
        self._controller.send(TestBegan(nodeid=test.nodeid))
        return attempt

    def _give_out(self, attempt: Attempt, index: int, following: str | None) -> None:
        test = attempt.test
        folder, scratch = self._folder_of(index), str(self._scratch(index))
        for handle, progress in zip(self._ranks.handles, attempt.ranks, strict=True):
            if handle.gone:
                continue
            handle.channel.send(
                RunTest(
                    nodeid=test.nodeid,
                    next_nodeid=following,
                    log=str(self._ranks.logs.open(progress.log)),
                    folder=folder,
                    scratch=scratch,
                    generation=index,
                    limit_s=test.timeout_s,
                    data=test.data,
                    reuse=test.reuses_ranks,
                )
            )

    def _judged(self, attempt: Attempt) -> JudgedAttempt:
        return JudgedAttempt(
            attempt,
            self._order.world_id,
            self._order.settings,
            place=self._ranks.logs.place,
            clear=functools.partial(self._left_behind, attempt),
        )

    def _judge(self, attempt: JudgedAttempt) -> TestResult:
        result = judge_with_plugins(attempt)
        if result.outcome.is_bad:
            return msgspec.structs.replace(result, after=self._before(attempt.test))
        return result

    def _before(self, test: TestCase) -> tuple[str, ...]:
        """List the tests that ran before this one in this world, by the ids that select them."""
        return tuple(each.selected_by for each in takewhile(lambda each: each is not test, self._order.tests))

    def _left_behind(self, attempt: Attempt) -> tuple[str, ...]:
        """End the ranks, and describe the processes that remain after their helpers had time to notice."""
        silenced = [progress for progress in attempt.ranks if not progress.is_over]
        for progress in silenced:
            self._ranks.note_end(progress)
        end_all([self._ranks.handle(progress.rank).child for progress in silenced])
        self._dismiss(BROKEN_LEAVE_S)
        limit_s = monotonic() + ORPHANS_S
        while (left := self._strays()) and monotonic() < limit_s:
            self._ranks.loop.wait(TICK_S)
        strays = name_strays(left, self._began)
        return tuple(what for _, what in (*strays, *self._clean()))

    def _strays(self) -> set[int]:
        """List living descendants that are not ranks."""
        return children_of() - {handle.child.pid for handle in self._ranks.handles}

    def _report(self, attempt: Attempt, result: TestResult, reports: tuple[str, ...] = ()) -> None:
        """Queue a verdict, with the pytest reports that represent it if it is the first one.

        It travels with the next message, which follows immediately: the start of another test, or the end of the world.
        """
        self._controller.hold(TestJudged(result=result, reports=reports, stop=attempt.stop))

    def _is_healthy(self, attempt: Attempt) -> bool:
        """Whether the world can run another test."""
        if attempt.failed_s is not None or attempt.left or attempt.cancelled:
            # A main process survives failures of its ranks, so its own health is not enough.
            return False
        return all(progress.may_run_another for progress in attempt.ranks)

    @property
    def _shape(self) -> WorldShape:
        return self._order.tests[0].world or ALONE

    @property
    def _kind(self) -> WorldKind:
        return self._order.tests[0].kind

    def _log_name(self, rank: int) -> str:
        return f"rank{rank}.log" if self._kind is WorldKind.RANKS else "main.log"

    # --- what arrives

    def _on_controller(self) -> None:
        messages = self._controller.receive()
        if self._controller.closed_by_peer:
            self._ranks.loop.ignore(self._controller)
            self._abandoned = True
            self._cancel("the controller is gone")
        for message in messages:
            self._on_order(message)

    def _look_around(self, *, at_once: bool = False) -> None:
        nodeid = self._began[-1][0] if self._began else ""
        for name, watch in [*self._looking.items()]:
            with self._keeping_error(name):
                watch.look(nodeid, at_once=at_once)

    def _clean(self) -> tuple[tuple[str, str], ...]:
        """Have the watches clean up; they may close their descriptors."""
        for watch in self._watches_with_fd():
            self._ranks.loop.ignore(watch)
        notes: list[tuple[str, str]] = []
        for name, watch in self._world_watches.items():
            with self._keeping_error(name):
                notes.extend(watch.clean())
        return tuple(notes)

    def _watches_with_fd(self) -> list[WorldWatch]:
        # The loop refuses -1 with a ValueError, both when a watch is added and when it is ignored.
        return [watch for watch in self._world_watches.values() if watch.fileno() >= 0]

    @contextlib.contextmanager
    def _keeping_error(self, name: str) -> Iterator[None]:
        """Keep the error of a watch, which then looks no more; the run ends once this world has ended its processes."""
        try:
            with blaming(name, "disttest_watch_world", meant=PluginError):
                yield
        except PluginError as error:
            self._plugin_error = self._plugin_error or str(error)
            watch = self._looking.pop(name, None)
            # Its descriptor may stay readable, and would wake the loop without end.
            if watch is not None and watch.fileno() >= 0:
                self._ranks.loop.ignore(watch)

    def _on_order(self, message: object) -> None:
        if isinstance(message, Cancel):
            self._cancel(message.reason)

    def _on_sigterm(self, sender: int) -> None:
        """Cancel on SIGTERM, except from a rank: a test that signals its parent is to blame for the end."""
        for handle in self._ranks.handles:
            if handle.child.pid == sender:
                self._ranks.give_up(handle, "it sent SIGTERM to its parent, the world process")
                return
        self._cancel(f"the world process was asked to end (SIGTERM from process {sender})")

    def _cancel(self, reason: str) -> None:
        self._reason = self._reason or reason
        attempt = self._ranks.attempt
        if attempt is None or attempt.cancelled:
            return
        attempt.cancel(reason, monotonic())
        # The main process knows the state of its ranks and ends them.
        if self._kind is WorldKind.MAIN:
            for handle in self._ranks.handles:
                handle.channel.send(Cancel(reason=reason))

    # --- ending

    def _close(self) -> None:
        # The last verdict first. The end of the ranks may take seconds, and pytest can report the test
        # meanwhile.
        self._controller.flush()
        self._ranks.logs.withdraw()
        self._look_around(at_once=True)
        notes = self._dismiss(self._leave_limit_s())
        # After the ranks have left: a crash in an exit handler or a destructor occurs only then.
        self._ranks.receive_last()
        after = self._judge_late_ends()
        # Named before they are killed: a process that has ended has no command line any more.
        leftovers = name_strays(self._strays(), self._began)
        # The world adopts every orphan below it, so all remaining descendants belong to its tests.
        survivors = kill_descendants(spare=())
        leftovers += (*after, *self._clean())
        # The stacks contain names of files and functions, unmasked.
        if outgoing.active:
            for stacks in Path(self._order.scratch_dir).glob("*.stacks"):
                stacks.unlink(missing_ok=True)
        if not self._abandoned:
            self._controller.send(
                WorldClosed(
                    reason=self._reason,
                    notes=notes,
                    leftovers=leftovers,
                    survivors=survivors,
                    plugin_error=self._plugin_error,
                )
            )

    def _leave_limit_s(self) -> float:
        attempt = self._ranks.attempt
        if not attempt or attempt.cancelled or not all(progress.done for progress in attempt.ranks):
            return BROKEN_LEAVE_S
        # Ranks of a broken world often wait for a lost peer and cannot leave, so they get less time. After a leak or an
        # expected failure they tear down as in a healthy world.
        has_failed = self._has_failed or (self._order.partition is not None and attempt.failed_s is not None)
        if has_failed and self._kind is WorldKind.RANKS and self._shape.size > 1:
            return BROKEN_LEAVE_S
        shares = any(progress.done and progress.done.shares for progress in attempt.ranks)
        return LAST_TEAR_DOWN_S if shares and len(attempt.ranks) <= FEW_RANKS else RANKS_LEAVE_S

    def _dismiss(self, limit_s: float) -> tuple[str, ...]:
        """Ask the ranks to leave; return a note about those that did not."""
        # An abandoned world has lost its controller, or its code has failed: no process waits for a
        # tear-down.
        dismissal = dismiss(self._ranks, 0.0 if self._abandoned else limit_s)
        self._stuck = dismissal.stuck
        return (dismissal.note,) if dismissal.note and not self._reason else ()

    def _judge_late_ends(self) -> tuple[tuple[str, str], ...]:
        """Fail the last test if one of its ranks died afterwards, or a fixture that outlived the test failed.

        Return notes instead if the test has failed already.
        """
        attempt = self._ranks.attempt
        if attempt is None or attempt.cancelled or self._abandoned:
            return ()
        if self._order.partition is not None and attempt.failed_s is not None:
            return ()  # the ranks of other nodes, which this node does not see, may be the reason
        torn = attempt.failed_tear_downs(self._stuck)
        if self._has_failed:
            return tuple((attempt.test.nodeid, text) for text in _describe_tear_downs(torn))
        dead = late_deaths(self._ranks, attempt, self._stuck, healthy=self._is_healthy(attempt))
        for handle in dead:
            self._ranks.record_exit(handle, attempt)
        for progress in torn:
            progress.reports.extend(filter(None, [progress.failed_tear_down]))
        if dead or torn:
            self._report(attempt, self._judge(self._judged(attempt)))
        return ()


def _describe_tear_downs(torn: Sequence[RankProgress]) -> Iterator[str]:
    by_message: dict[str, list[int]] = {}
    for progress in torn:
        message = progress.failed_tear_down.message if progress.failed_tear_down else ""
        by_message.setdefault(message, []).append(progress.rank)
    for message, ranks in by_message.items():
        yield f"{rank_names(ranks)}: a fixture that outlived this test failed in its tear-down: {message}"
