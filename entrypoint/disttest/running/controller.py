"""The controller: turns collected items into tests, gives gangs to worlds, and reports what they say.

It lives in the pytest process, touches no GPU and starts no thread, so that worlds can be forked from it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from disttest.host.process import Exit, fork_hazard
from disttest.model import Cause, Gang, Outcome, Slot, TestCase, TestResult
from disttest.planning.breaker import results_not_run
from disttest.planning.gangs import build_gangs, rest_of
from disttest.planning.options import RunOptions
from disttest.planning.schedule import GangScheduler, Scheduler
from disttest.planning.timings import Timings
from disttest.results.repeat import repeat_command
from disttest.running.collect import Host, known_skip, modules_of
from disttest.running.crew import Crew, Listener, Running
from disttest.running.devices import Devices
from disttest.running.litter import Litter
from disttest.running.protocol import TestJudged, WorldOrder
from disttest.running.pytest_reports import late_reports, reports_of, rerun_reports, skip_reports
from disttest.running.recorder import Recorder
from disttest.running.retries import Retries
from disttest.running.starters import ForkStarter, InterpreterStarter
from disttest.running.upkeep import Upkeep, Vacated, blame_device
from disttest.running.world import RankStarter

_IDLE_S = 1.0


class Workplace(NamedTuple):
    """Where a run keeps its files."""

    results: Path
    scratch: Path


class DeadlinePassed(Exception):
    """The time of the whole run is used up."""


class Controller(Listener):
    """Runs the world tests of one pytest session."""

    def __init__(
        self,
        session: pytest.Session,
        options: RunOptions,
        devices: Devices,
        host: Host,
        recorder: Recorder,
        workplace: Workplace,
        *,
        deadline_s: float | None,
        timings: Timings,
        failed_first: bool = False,
    ) -> None:
        self._session = session
        self._options = options
        self._devices = devices
        self._host = host
        self._slots = (*devices.slots, *devices.cpu_slots)
        self._recorder = recorder
        self._workplace = workplace
        self._deadline_s = deadline_s
        self._timings = timings
        self._failed_first = failed_first
        self._items: dict[str, pytest.Item] = {}
        self._tests: dict[str, TestCase] = {}
        self._told: set[str] = set()
        """Tests whose verdict pytest knows."""
        self._worlds = 0
        self._scheduler: Scheduler = GangScheduler(self._slots, clock=recorder.now)
        self._crew = Crew(self, recorder.now, helpers=lambda: self._upkeep.pids)
        self._upkeep = Upkeep(devices, self._scheduler, self, recorder.noted)
        self._litter = Litter(recorder.noted, recorder.now)
        self._suspended: dict[str, TestJudged] = {}
        """Failures of which it is open whether the device or the test is at fault."""
        self._told_suites: set[str] = set()
        self._retries = Retries(options, time.monotonic)
        self._hazard: str | None = None

    def run(self, pairs: Sequence[tuple[pytest.Item, TestCase]]) -> None:
        """Run the tests; returns when every one has been reported.

        Raises:
            DeadlinePassed: the deadline of the run came first.
            pytest.Session.Failed: ``-x`` or ``--maxfail`` was reached.
        """
        self._items = {test.nodeid: item for item, test in pairs}
        self._tests = {test.nodeid: test for _, test in pairs}
        runnable = [test for item, test in pairs if not self._skip_early(item, test)]
        if not runnable:
            return
        self._hazard = fork_hazard()
        if self._hazard:
            self._announce_hazard(self._hazard)
        failed = self._timings.failed_among(runnable) if self._failed_first else ()
        sizes = [test.world.size for test in runnable if test.world and test.world.device != "cpu"]
        self._upkeep.narrowest = min(sizes, default=1)
        offered = {"slots": len(self._devices.slots), "cpu_slots": len(self._devices.cpu_slots)}
        for gang in build_gangs(runnable, self._timings, failed=failed, **offered):
            self._scheduler.submit(gang)
        with contextlib.ExitStack() as ending:
            ending.callback(self._tell_unresolved)
            ending.callback(self._upkeep.close)
            ending.callback(self._litter.sweep)
            ending.enter_context(self._crew.on_duty())
            ending.callback(self._retries.stop)
            self._upkeep.begin()
            self._loop()

    def _loop(self) -> None:
        while not self._scheduler.idle or self._retries.open or self._upkeep.busy:
            for gang in self._retries.due():
                self._scheduler.submit(gang)
            for start in self._scheduler.due():
                self._start(start.gang, start.slots)
            for gang in self._scheduler.stranded():
                self._give_up(gang)
            self._crew.wait(self._patience_s(), also=self._upkeep.descriptors())
            self._upkeep.advance([slot.name for world in self._crew.running.values() for slot in world.slots])
            self._stop_if_asked()

    def _patience_s(self) -> float:
        patience_s = min(_IDLE_S, self._retries.patience_s(), self._upkeep.patience_s)
        if self._deadline_s is None:
            return patience_s
        return min(patience_s, self._deadline_s - time.monotonic())

    def _stop_if_asked(self) -> None:
        session = self._session
        if session.shouldfail:
            self._stop(f"the run stopped: {session.shouldfail}")
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            self._stop(f"the run stopped: {session.shouldstop}")
            raise session.Interrupted(session.shouldstop)
        if self._deadline_s is not None and time.monotonic() >= self._deadline_s:
            self._stop(f"the deadline of the run ({self._options.deadline:g} s) passed")
            raise DeadlinePassed

    def _stop(self, reason: str) -> None:
        self._retries.stop()
        self._crew.end_all(reason)

    def _skip_early(self, item: pytest.Item, test: TestCase) -> bool:
        reason = known_skip(item)
        if reason is None:
            return False
        result = TestResult(
            nodeid=test.nodeid,
            outcome=Outcome.SKIPPED,
            started_at_s=self._recorder.now(),
            phase="setup",
            message=reason,
        )
        self._recorder.test_finished(result)
        self._tell_pytest(item, skip_reports(item, reason))
        return True

    def _announce_hazard(self, hazard: str) -> None:
        message = (
            f"forking is unsafe here: {hazard}. Each rank is a fresh interpreter instead: slower, never wrong. "
            "To have it fast, start threads and touch CUDA inside tests or fixtures, not at import."
        )
        self._recorder.noted(message)
        reporter = self._session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"disttest: {message}", yellow=True)

    # --- worlds

    def _start(self, gang: Gang, slots: tuple[Slot, ...]) -> None:
        self._worlds += 1
        world_id = f"w{self._worlds}"
        scratch = self._workplace.scratch / world_id
        scratch.mkdir(parents=True, exist_ok=True)
        order = WorldOrder(
            world_id=world_id,
            tests=tuple(self._tests[nodeid] for nodeid in gang.nodeids),
            attempts=tuple(map(self._retries.attempt_of, gang.nodeids)),
            devices=tuple(slot.uuid or str(slot.index) for slot in slots if slot.device != "cpu"),
            results_dir=str(self._workplace.results),
            scratch_dir=str(scratch),
            seed=self._options.seed,
            threads=self._devices.threads(gang.shape),
            grace_s=self._options.grace,
            log_limit=self._options.log_limit,
            verdict=self._options.verdict,
            native_stacks=self._options.native_stacks,
        )
        world = self._crew.start(gang, slots, order, self._rank_starter(gang))
        self._recorder.world_started(world_id, gang.shape, slots, world.child.pid)

    def _rank_starter(self, gang: Gang) -> RankStarter:
        if not self._hazard:
            return ForkStarter(self._session, self._items)
        items = [self._items[nodeid] for nodeid in gang.nodeids]
        return InterpreterStarter(self._session.config.invocation_params.args, modules_of(items), self._host)

    def on_began(self, world: Running, test: TestCase) -> None:
        """A test starts."""
        attempt = self._retries.attempt_of(test.nodeid)
        self._recorder.test_started(test.nodeid, attempt=attempt, world_id=world.world_id)

    def on_judged(self, world: Running, test: TestCase, judged: TestJudged) -> None:
        """A test has its verdict; a second one is of a rank that died after the first."""
        judged = self._retries.settle(judged)
        self._litter.ran(judged.result)
        suspect = self._upkeep.suspects(judged.result, world.slots)
        again = not suspect and self._retries.wants_another(judged.result)
        self._recorder.test_finished(judged.result, again=again)
        if suspect:
            self._suspended[test.nodeid] = judged
        else:
            self._decide(test, judged)

    def _decide(self, test: TestCase, judged: TestJudged) -> None:
        """Try it again, or let the verdict stand."""
        pause_s = self._retries.take(test, judged)
        if pause_s is None:
            self._tell_verdict(test, judged)
            return
        if judged.result.cause is Cause.INFRASTRUCTURE:
            self._recorder.noted(
                f"infrastructure, tried again in {pause_s:.1f} s: {judged.result.message}", test.nodeid
            )
        item = self._items[test.nodeid]
        self._tell_pytest(item, rerun_reports(item, test, judged, self._workplace.results))

    def _tell_verdict(self, test: TestCase, judged: TestJudged) -> None:
        """Tell pytest what a test came to, with all its attempts."""
        item, started = self._items[test.nodeid], self._recorder.started
        repeat = repeat_command(test, started) if started and judged.result.outcome.is_bad else ""
        if test.nodeid not in self._told:
            self._told.add(test.nodeid)
            self._tell_pytest(item, reports_of(item, test, judged, self._workplace.results, repeat))
        elif judged.result.outcome.is_bad:
            for report in late_reports(item, test, judged.result, self._workplace.results, repeat):
                item.ihook.pytest_runtest_logreport(report=report)

    def _tell_unresolved(self) -> None:
        """The run stopped before these could be tried again: their failures stand."""
        for nodeid, judged in (*self._retries.unresolved(), *self._suspended.items()):
            self._tell_verdict(self._tests[nodeid], judged)

    def on_ended(self, world: Running, ended: Exit) -> None:
        """A world is gone: free its slots, and give what it still owes to the next one."""
        closed = world.closed
        cancelled = closed is not None and bool(closed.reason) and self._crew.is_ending
        no_progress = len(world.owed) == len(world.order.tests) and not cancelled
        # One test is taken off the list each time, so that no gang starts worlds for ever.
        if world.owed and (closed is None or no_progress):
            self._blame_world(world, ended)
        reason = closed.reason if closed else f"its world process ended with {ended}"
        self._recorder.world_ended(world.world_id, reason)
        for nodeid, left in closed.leftovers if closed else ():
            self._recorder.noted(left, nodeid)
        for note in closed.notes if closed else ():
            self._recorder.noted(f"world {world.world_id} ({world.order.tests[0].nodeid} …): {note}")
        if closed and closed.survivors:
            pids, slots = (
                ", ".join(map(str, who)) for who in (closed.survivors, (s.name for s in world.slots))
            )
            self._recorder.noted(
                f"processes of world {world.world_id} could not be killed ({pids}); its slots are not used again: {slots}"
            )
        self._upkeep.vacate(
            Vacated(
                gang_id=world.gang.gang_id,
                slots=world.slots,
                last_test=world.begun.nodeid if world.begun else "",
                pids=self._litter.pids(world.world_id),
                survivors=closed.survivors if closed else (),
            )
        )
        self._litter.left(world.world_id)
        if world.owed and not cancelled:
            owed = tuple(test.nodeid for test in world.owed)
            self._scheduler.submit(rest_of(world.gang, owed))

    def _blame_world(self, world: Running, ended: Exit) -> None:
        """The world process itself died: the test it was at is an error, the others get a new world."""
        test = world.begun if world.begun in world.owed else world.owed[0]
        assert test is not None
        text = world.error_log.read_text(errors="replace").strip() if world.error_log.exists() else ""
        result = TestResult(
            nodeid=test.nodeid,
            outcome=Outcome.ERROR,
            cause=Cause.INFRASTRUCTURE,
            attempt=self._retries.attempt_of(test.nodeid),
            started_at_s=self._recorder.now(),
            message=world.failure
            or (world.closed.reason if world.closed else "")
            or f"the world process {world.world_id} ended with {ended} before it judged the test",
            details=text[-16_384:],
            world_id=world.world_id,
        )
        world.owed.remove(test)
        self.on_judged(world, test, TestJudged(result=result))

    # --- devices that fail (see Upkeep)

    def on_cleared(self) -> None:
        """The devices are in order: these failures are the tests' own."""
        for nodeid in [nodeid for nodeid in self._suspended if not self._upkeep.is_open(nodeid)]:
            self._decide(self._tests[nodeid], self._suspended.pop(nodeid))

    def on_accused(self, nodeids: Sequence[str], reason: str) -> None:
        """These failed because of a device that is used no more: they run again on others."""
        for nodeid in nodeids:
            test, judged = self._tests[nodeid], self._excuse(nodeid, reason)
            self._retries.grant(test, judged)
            self._tell_pytest(
                self._items[nodeid],
                rerun_reports(self._items[nodeid], test, judged, self._workplace.results),
            )
        self.on_cleared()

    def on_gave_up(self, nodeids: Sequence[str], reason: str) -> None:
        """The same, and no world fits on GPUs any more (so none runs there): what waits for them is not run."""
        if not self._devices.cpu_slots:
            self._retries.stop()  # else those of worlds on the CPU go on, and the others find no GPU
        for nodeid in nodeids:
            self._tell_verdict(self._tests[nodeid], self._excuse(nodeid, reason))
        self.on_cleared()
        waiting = {nodeid for gang in self._scheduler.withdraw(spare="cpu") for nodeid in gang.nodeids}
        self._leave_out([nodeid for nodeid in self._tests if nodeid in waiting], reason)

    def _excuse(self, nodeid: str, reason: str) -> TestJudged:
        judged = self._suspended.pop(nodeid)
        excused = msgspec.structs.replace(judged, result=blame_device(judged.result, reason))
        self._recorder.test_finished(excused.result)
        return excused

    def _leave_out(self, nodeids: Sequence[str], reason: str) -> None:
        """Tests that are not run because of broken devices: one error for each suite, the others skipped."""
        owed = []
        for nodeid in nodeids:
            if (earlier := self._retries.withdraw(nodeid)) is not None:
                self._recorder.noted(f"not tried again: {reason}", nodeid)
                self._tell_verdict(self._tests[nodeid], earlier)
            else:
                owed.append(self._tests[nodeid])
        for result in results_not_run(owed, reason, at_s=self._recorder.now(), told=self._told_suites):
            self._recorder.test_finished(result)
            if result.outcome.is_bad:
                self._tell_verdict(self._tests[result.nodeid], TestJudged(result=result))
            else:
                item = self._items[result.nodeid]
                self._tell_pytest(item, skip_reports(item, reason))

    def _give_up(self, gang: Gang) -> None:
        """Too few slots are left for this gang: its tests are errors of the machine, never silently lost."""
        if self._upkeep.broken and gang.shape.device != "cpu":
            self._leave_out(gang.nodeids, f"not run: {self._upkeep.shortage(gang.shape.size)}")
            return
        for test in (self._tests[nodeid] for nodeid in gang.nodeids):
            message = (
                f"never started: it needs {gang.shape.size} {gang.shape.device} slots, and too few are left, since "
                "processes that could not be killed hold the others; see the notes on quarantined slots"
            )
            result = TestResult(
                nodeid=test.nodeid,
                outcome=Outcome.ERROR,
                cause=Cause.INFRASTRUCTURE,
                started_at_s=self._recorder.now(),
                message=message,
            )
            if (earlier := self._retries.withdraw(test.nodeid)) is not None:
                self._recorder.noted(f"not tried again: {message}", test.nodeid)
                self._tell_verdict(test, earlier)
                continue
            self._recorder.test_finished(result)
            self._tell_verdict(test, TestJudged(result=result))

    def _tell_pytest(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
        """All of a test at once, so that its output is one block however many worlds run."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
