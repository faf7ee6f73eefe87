"""The controller: assigns batches of tests to worlds and handles the results of both.

It runs in the pytest process, touches no GPU and starts no thread, so that worlds can be forked from it.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from disttest.clock import monotonic
from disttest.errors import ExitCode
from disttest.host.descendants import children_of
from disttest.host.idle_processors import IdleProcessors
from disttest.host.process import Exit
from disttest.limits import IDLE_S, TICK_S
from disttest.model import ALONE, Batch, Cause, Outcome, Slot, TestCase, TestResult, WorldKind
from disttest.options.run import RunOptions
from disttest.planning.batches import build_batches, rest_of
from disttest.planning.schedule import BatchScheduler, Scheduler
from disttest.planning.timings import Timings
from disttest.plugin_manager import blaming, plugin_manager
from disttest.results.directory import Workplace
from disttest.results.verdict import not_run
from disttest.runtime.controller.collect import is_ordinary
from disttest.runtime.controller.devices import Devices, Vacated
from disttest.runtime.controller.fork_sources import ForkSources, fork_sources
from disttest.runtime.controller.live_output import LiveOutput
from disttest.runtime.controller.retries import Retries
from disttest.runtime.controller.run_recorder import RunRecorder
from disttest.runtime.controller.session import DeadlinePassed, RunSession
from disttest.runtime.controller.spare_slots import SpareSlots, may_lend
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.controller.verdicts import Verdicts
from disttest.runtime.controller.world_pool import Listener, LiveWorld, WorldPool, settle
from disttest.runtime.messages.protocol import RunStop, TestJudged, WorldOrder


class RunStopped(Exception):
    """A test has ended the run."""

    def __init__(self, stop: RunStop) -> None:
        super().__init__(stop.reason)
        self.stop = stop


class Controller(Listener):
    """Runs the world tests of one pytest session."""

    def __init__(
        self,
        session: pytest.Session,
        options: RunOptions,
        devices: Devices,
        host: TargetHost,
        recorder: RunRecorder,
        workplace: Workplace,
        *,
        fork_sources: Callable[[], ForkSources],
        services: Sequence[int],
        deadline_s: float | None,
        timings: Timings,
        failed_first: bool = False,
        letter: str = "w",
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
        # Prefix of the names of its worlds.
        self._letter = letter
        self._settled = settle(session.config, options)
        self._worlds = 0
        self._failed_of_rank: Counter[int] = Counter()
        # The end of the run that a test requested.
        self._asked: RunStop | None = None
        # The reason why the user wants no further test (``-x``); empty while there is none.
        self._enough = ""
        self._scheduler: Scheduler = BatchScheduler(
            self._slots, clock=recorder.now, ranks_per_gpu=options.ranks_per_gpu
        )
        counted = bool(options.slots)
        self._spare = (
            SpareSlots(self._scheduler, devices.machine, len(devices.slots), IdleProcessors().read)
            if may_lend(devices.machine, self._slots, counted=counted)
            else None
        )
        self._pool = WorldPool(self, helpers=lambda: self._device_health.pids, services=services)
        self._device_health = devices.health(self._scheduler, self, recorder.noted, workplace.scratch)
        self._retries = Retries(options, monotonic)
        self._verdicts = Verdicts(recorder, self._retries, lambda: workplace.results)
        self._fork_sources = fork_sources
        self._live = LiveOutput(session.config, lambda: workplace.results)

    def run(self, pairs: Sequence[tuple[pytest.Item, TestCase]]) -> None:
        """Run the tests; return when each one has a result.

        Raises:
            DeadlinePassed: the deadline of the run passed first.
            RunStopped: a test ended the run.
            pytest.Session.Failed: ``-x`` or ``--maxfail`` applied.
        """
        self._items = {test.nodeid: item for item, test in pairs}
        self._tests = {test.nodeid: test for _, test in pairs}
        self._allow_retries()
        runnable = self._verdicts.begin(self._items, self._tests)
        if not runnable:
            return
        failed = self._timings.failed_among(runnable) if self._failed_first else ()
        sizes = [test.world.size for test in runnable if test.world and test.world.device != "cpu"]
        self._device_health.narrowest = math.ceil(min(sizes, default=1) / self._options.ranks_per_gpu)
        own = len(self._devices.slots)
        offered = {
            "slots": own,
            "cpu_slots": len(self._devices.cpu_slots),
            "spare": self._spare.count if self._spare is not None else 0,
        }
        together = self._options.one_world
        for batch in build_batches(runnable, self._timings, failed=failed, together=together, **offered):
            self._scheduler.submit(batch)
        # These callbacks run in reverse. Retries stop first, because each world that is ended judges its
        # test, which must not be scheduled again. Failures that wait for an attempt or a proof are reported
        # last, when no world can add a verdict.
        with contextlib.ExitStack() as ending:
            # Create the fork server before a world takes slots.
            self._fork_sources()
            self._enter_plugins(ending)
            ending.callback(self._verdicts.report_unresolved)
            ending.callback(self._device_health.close)
            ending.enter_context(self._pool.adopting_orphans())
            ending.callback(self._retries.stop)
            self._device_health.begin()
            self._loop()

    def _enter_plugins(self, ending: contextlib.ExitStack) -> None:
        """Enter the contexts that plugins want around the time in which worlds are forked."""
        manager = contextlib.AbstractContextManager
        found = plugin_manager().named("disttest_around_worlds", manager, settings=self._options)  # type: ignore[type-abstract]
        for name, around in found.items():
            with blaming(name, "disttest_around_worlds"):
                ending.enter_context(around)

    def _allow_retries(self) -> None:
        """Give tests the number of retries that plugins ask for, unless the run sets one."""
        # An option of the run takes precedence over marks of other plugins, such as flaky(reruns=2).
        if "retries" in self._options.given:
            return
        ask = functools.partial(plugin_manager().call, "disttest_retries")
        asked = {nodeid: ask(item=item) for nodeid, item in self._items.items()}
        self._retries.allow({nodeid: count for nodeid, count in asked.items() if count is not None})

    def _loop(self) -> None:
        while not self._scheduler.idle or self._retries.open or self._device_health.busy:
            # Before `due()` of the scheduler, so that a retry gets a slot in this round and not one wait
            # later.
            for batch in self._retries.due():
                self._scheduler.submit(batch)
            for start in self._scheduler.due():
                self._start(start.batch, start.slots)
            for batch in self._scheduler.stranded():
                self._give_up(batch)
            # The loop waits only here.
            descriptors = self._device_health.descriptors()
            self._pool.wait(self._wait_s(), until_s=self._deadline_s or math.inf, also=descriptors)
            self._live.look()
            self._device_health.advance(
                [slot.name for world in self._pool.running.values() for slot in world.slots]
            )
            if self._spare is not None:
                self._spare.advance(self._pool.running.values())
            self._stop_if_asked()

    def _wait_s(self) -> float:
        idle_s = TICK_S if self._live.is_following else IDLE_S
        spare_s = self._spare.wait_s if self._spare is not None else idle_s
        return min(idle_s, spare_s, self._retries.due_in_s(), self._device_health.wait_s)

    def _stop_if_asked(self) -> None:
        session = self._session
        # First, because the same failure may have met -x as well, and the exit code that the test chose
        # counts.
        if self._asked is not None:
            self._enough = self._asked.reason
            self._stop(f"the run stopped: {self._asked.reason}")
            raise RunStopped(self._asked)
        if session.shouldfail:
            self._enough = str(session.shouldfail)
            self._stop(f"the run stopped: {session.shouldfail}")
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            self._enough = str(session.shouldstop)
            self._stop(f"the run stopped: {session.shouldstop}")
            raise session.Interrupted(session.shouldstop)
        if self._deadline_s is not None and monotonic() >= self._deadline_s:
            self._stop(f"the deadline of the run ({self._options.deadline:g} s) passed")
            raise DeadlinePassed

    def _stop(self, reason: str) -> None:
        self._retries.stop()
        self._pool.end_all(reason)

    # --- worlds

    def _start(self, batch: Batch, slots: tuple[Slot, ...]) -> None:
        self._worlds += 1
        world_id = f"{self._letter}{self._worlds}"
        scratch = self._workplace.scratch / world_id
        scratch.mkdir(parents=True, exist_ok=True)
        order = WorldOrder(
            world_id=world_id,
            tests=tuple(self._tests[nodeid] for nodeid in batch.nodeids),
            attempts=tuple(map(self._retries.attempt_of, batch.nodeids)),
            devices=tuple(slot.visible_name for slot in slots if slot.device != "cpu"),
            defaults=dict(self._device_health.variables(batch, slots)),
            failed_before=dict(self._failed_of_rank),
            home=self._workplace.home,
            scratch_dir=str(scratch),
            settings=self._options.for_worlds(),
            settled=self._settled,
            threads=self._devices.machine.cpus
            if batch.shape == ALONE
            else self._devices.threads(batch.shape),
        )
        world = self._pool.start(batch, slots, order, self._fork_sources().starter_for(batch))
        self._recorder.world_started(world_id, batch.shape, [slot.name for slot in slots], world.child.pid)

    def on_began(self, world: LiveWorld, test: TestCase) -> None:
        """Record the start of a test."""
        attempt = self._retries.attempt_of(test.nodeid)
        self._recorder.test_started(test.nodeid, attempt=attempt, world_id=world.world_id)
        self._live.begin(world.world_id, test.log_folder(attempt))

    def on_judged(self, world: LiveWorld, test: TestCase, judged: TestJudged) -> None:
        """Record the result of a test. A second result means that a rank died after the first."""
        self._live.end(world.world_id)
        # A cancelled world judges its running test as a failure of the machine. Here the end of the run was
        # wanted, so the test was not run.
        if self._enough and judged.result.cause is Cause.INFRASTRUCTURE:
            counted = self._retries.counted(judged)
            ended = not_run(test.nodeid, self._enough, at_s=judged.result.started_at_s)
            # A failure that was being retried still counts.
            self._recorder.test_finished(ended if counted is judged else counted.result)
            return
        good = judged.result.outcome in (Outcome.PASSED, Outcome.SKIPPED)
        self._failed_of_rank.update(record.rank for record in judged.result.ranks if record.has_failed)
        self._device_health.judged(world.batch, world.slots, good=good)
        if judged.stop is not None and self._asked is None:
            reason = f"{test.nodeid} ended the run: {judged.stop.reason}"
            self._asked = msgspec.structs.replace(judged.stop, reason=reason)
            self._retries.stop()
        judged = self._retries.counted(judged)
        world.pids = tuple(rank.pid for rank in judged.result.ranks) or world.pids
        suspect = self._device_health.suspects(judged.result, world.slots)
        self._verdicts.judged(test, judged, suspect=suspect)

    def on_ended(self, world: LiveWorld, ended: Exit) -> None:
        """Release the slots of an ended world, and submit its remaining tests to a new one."""
        self._live.end(world.world_id)
        closed = world.closed
        cancelled = closed is not None and bool(closed.reason) and self._pool.is_ending
        # A world that ends in order without a single result would be started again forever.
        no_progress = len(world.owed) == len(world.order.tests) and not cancelled
        # Each ended world removes at least one test, so that no batch starts worlds forever.
        if world.owed and (closed is None or no_progress):
            self._blame_world(world, ended)
        reason = closed.reason if closed else f"its world process ended with {ended}"
        self._recorder.world_ended(world.world_id, reason)
        plugin_manager().call("disttest_world_ended", scratch=Path(world.order.scratch_dir))
        # Before the error of a plugin below, which ends the run: the findings of its other watches must be
        # recorded by then.
        self._note_end(world)
        if closed and closed.plugin_error and self._asked is None:
            # The worlds that still run end in order, and their results count.
            self._asked = RunStop(reason=closed.plugin_error, exit_code=ExitCode.INTERNAL)
            self._retries.stop()
        well = closed is not None and not closed.reason
        self._device_health.world_ended(world.batch, world.slots, well=well)
        self._device_health.vacate(
            Vacated(
                batch_id=world.batch.batch_id,
                slots=world.slots,
                last_test=world.begun.nodeid if world.begun else "",
                pids=world.pids,
                survivors=closed.survivors if closed else (),
            )
        )
        if world.owed and not cancelled:
            self._scheduler.submit(rest_of(world.batch, tuple(world.owed)))

    def _note_end(self, world: LiveWorld) -> None:
        """Record what an ended world has noted, and the processes that could not be killed."""
        closed = world.closed
        if closed is None:
            return
        for nodeid, left in closed.leftovers:
            self._recorder.noted(left, nodeid)
        if closed.plugin_error:  # also where the run ends for another reason
            self._recorder.noted(closed.plugin_error)
        for note in closed.notes:
            self._recorder.noted(f"world {world.world_id} ({world.order.tests[0].nodeid} …): {note}")
        if closed.survivors:
            pids = ", ".join(map(str, closed.survivors))
            slots = ", ".join(slot.name for slot in world.slots)
            self._recorder.noted(
                f"processes of world {world.world_id} could not be killed ({pids}); its slots are not used again: {slots}"
            )

    def _blame_world(self, world: LiveWorld, ended: Exit) -> None:
        """Handle the death of a world process: its running test is an error, the others get a new world."""
        test = world.begun
        # It died before its first test or between two tests. The next test is blamed, so that the batch gets
        # shorter.
        if test is None or test.nodeid not in world.owed:
            test = next(iter(world.owed.values()))
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
            # The end of a traceback matters most.
            details=text[-16_384:],
            world_id=world.world_id,
        )
        del world.owed[test.nodeid]
        self.on_judged(world, test, TestJudged(result=result))

    def _give_up(self, batch: Batch) -> None:
        """Report the tests of a batch for which too few slots are left as errors of the machine."""
        # A broken GPU is reported once for each suite, not once for each test.
        if self._device_health.broken and batch.shape.device != "cpu":
            shortage = self._device_health.shortage(batch.shape.size)
            self._verdicts.leave_out(batch.nodeids, f"not run: {shortage}")
            return
        self._verdicts.never_started(
            batch.nodeids,
            f"never started: it needs {batch.shape.size} {batch.shape.device} slots, and too few are left, since "
            "processes that could not be killed hold the others; see the notes on quarantined slots",
        )

    # --- devices that fail (see DeviceHealth)

    def on_cleared(self) -> None:
        """The devices work: suspended failures belong to their tests."""
        self._verdicts.clear(self._device_health.is_open)

    def on_device_blamed(self, nodeids: Sequence[str], reason: str) -> None:
        """The device that caused these failures is out of use: run the tests again on others."""
        self._verdicts.run_again(nodeids, reason)
        self.on_cleared()

    def on_gave_up(self, nodeids: Sequence[str], reason: str) -> None:
        """The same, but no world fits on the remaining GPUs: leave out the tests that wait for one."""
        if not self._devices.cpu_slots:
            # Otherwise retries of worlds on the CPU would continue, and the others would find no GPU.
            self._retries.stop()
        self._verdicts.excuse(nodeids, reason)
        self.on_cleared()
        waiting = {nodeid for batch in self._scheduler.withdraw(spare="cpu") for nodeid in batch.nodeids}
        self._verdicts.leave_out([nodeid for nodeid in self._tests if nodeid in waiting], reason)


def run_out_of_process(session: pytest.Session, run: RunSession, note: Callable[[str], None]) -> None:
    """Run all that does not run in the pytest process: world tests, then isolated ordinary tests.

    Both are forked from the same processes.

    Args:
        session: the session that has collected.
        run: state of the run; the journal is open.
        note: receives a message about the current step.

    Raises:
        DeadlinePassed: the deadline of the run passed first.
        RunStopped: a test ended the run.
        pytest.Session.Failed: ``-x`` or ``--maxfail`` applied.
    """
    assert run.recorder is not None
    assert run.workplace is not None
    assert run.devices is not None
    apart = [(item, test) for item, test in run.pairs if not is_ordinary(test)]
    # This import precedes the check for hazards, because it may start a thread. It also precedes any fork, so that all
    # ranks share the imported modules.
    plugin_manager().call("disttest_load_parts", config=session.config)
    items = [item for item, _ in apart]
    for _, message in plugin_manager().items(
        "disttest_worlds_begin", str, items=items, config=session.config
    ):
        run.recorder.noted(message)
    # Before the fork server starts: a server that a conftest started may fork for each client, and those forks live on.
    services = tuple(children_of())
    making = fork_sources(
        session,
        {test.nodeid: item for item, test in apart},
        run.find_hazards(),
        run.recorder,
        host=run.host,
        scratch=run.workplace.scratch,
        apart=run.options.ranks_collect,
    )
    with making as sources:
        control = functools.partial(
            Controller,
            session,
            run.options,
            run.devices,
            run.host,
            run.recorder,
            run.workplace,
            fork_sources=sources,
            services=services,
            deadline_s=run.deadline_s,
            timings=run.timings(),
            failed_first=run.work.failed_first,
        )
        # World tests precede ordinary tests, which may start threads or touch CUDA in this process. Nothing
        # could be forked from it afterwards.
        note("running the worlds")
        control(letter=run.options.world_letter).run([pair for pair in apart if pair[1].world is not None])
        note("running ordinary tests in processes of their own")
        control(letter="p").run([pair for pair in apart if pair[1].kind is WorldKind.PROCESS])
