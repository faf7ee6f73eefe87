"""State of one pytest session: its options, the collected tests, the journal."""

from __future__ import annotations

import math
import os
import secrets
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from disttest.clock import monotonic
from disttest.errors import DisttestError, ExitCode, InfrastructureError, JournalError, UsageError
from disttest.host.process import leave_if_copy
from disttest.limits import REFUSAL_S
from disttest.model import Frozen, Slot, TestCase, TestResult, WorldKind
from disttest.outgoing import outgoing, shorten
from disttest.planning.timings import Timings, hardware_key
from disttest.plugin_manager import plugin_manager
from disttest.results.directory import (
    Home,
    ResultsDirectory,
    Workplace,
    adopt,
    claim,
    drop_log_folder,
    make_log_folder,
)
from disttest.results.durations import read_timings
from disttest.results.events import RunStarted
from disttest.results.journal import FILE_NAME, Journal
from disttest.runtime.controller import orders
from disttest.runtime.controller.collect import describe_item, describe_skipped, is_ordinary
from disttest.runtime.controller.devices import Devices, make_devices, name_run, this_machine
from disttest.runtime.controller.early_skips import known_skip
from disttest.runtime.controller.ending import ExitBlockers, end_run, leave_session
from disttest.runtime.controller.expand import WantedWorld, shape_of
from disttest.runtime.controller.hazards import Hazards, HazardWatch
from disttest.runtime.controller.missing_ranks import NoWorlds, reads_at_import
from disttest.runtime.controller.ordinary import OrdinaryTests
from disttest.runtime.controller.run_recorder import RunRecorder
from disttest.runtime.controller.run_watch import RunWatch, watch_run
from disttest.runtime.controller.session_options import (
    ASKED,
    OPTIONS,
    host_in_order,
    invocation_of,
    options_of,
    pytests_errors,
    with_plugins,
)
from disttest.runtime.controller.time_limits import TimeLimits
from disttest.runtime.controller.wanted_worlds import needed_gpus, own_world, takes_world, worlds_of
from disttest.runtime.messages.protocol import clean_text
from disttest.runtime.rank.bridge import leave_as_copy

_INHERITED = pytest.StashKey[ResultsDirectory]()


def inherit_results(config: pytest.Config) -> None:
    """Take over the lock of the results directory before any process starts that would hold it too."""
    order = orders.order_of(config)
    if isinstance(order, orders.ControllerOrder) and order.claim is not None and order.journal is not None:
        # Programs that tests start would keep the journal open, and could write into it.
        os.set_inheritable(order.journal, False)
        path = Path(config.known_args_namespace.disttest_results)
        config.stash[_INHERITED] = adopt(path, order.claim, run_pid=order.shared.supervisor)


class TestSelection(Frozen):
    """The tests that a plugin keeps."""

    kept: frozenset[str]
    """Node ids."""
    notes: tuple[tuple[str, str], ...] = ()
    """Node id and note for the report; a note without a node id is about the run."""
    data: Any = None
    """A :class:`disttest.model.Frozen` struct or JSON data for ``Invocation.data[NAME]``, where NAME is the last part of the
    plugin's name; None for none."""


class DeadlinePassed(Exception):
    """The deadline of the whole run has passed."""


class RunSession:
    """State between hooks; one for each pytest configuration.

    Raises:
        pytest.UsageError: an option is invalid.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.started_s = monotonic()
        self.options = config.stash[OPTIONS] = with_plugins(options_of(config), config)
        self._asked = config.stash[ASKED]
        order = orders.order_of(config)
        self._supervised = order.is_supervised
        outgoing.share(order.ledger if order.ledger >= 0 else None)
        self.rank_order = orders.collecting_order(config)
        self.work = order if isinstance(order, orders.ControllerOrder) else orders.ControllerOrder()
        self.said: list[str] = []
        # Messages that the terminal has shown already.
        self._shown: set[str] = set()
        # The reason why the GPUs of this machine cannot be used; raised only if a test needs one.
        self._broken: DisttestError | None = None
        self.devices: Devices | None = None
        host = order.shared.host
        if host is None:
            self.devices = self._find_devices()
            host = self.devices.target_host() if self.devices else host_in_order(self.options)
        self.host = host
        self.pairs: list[tuple[pytest.Item, TestCase]] = []
        self.without_worlds = ""
        """Message for a green run that used no world although its tests are related to ranks."""
        self._no_worlds = NoWorlds()
        config.pluginmanager.register(self._no_worlds, "disttest-no-worlds")
        self.exit_blockers = ExitBlockers()
        self.errors: list[tuple[str, str]] = []
        # Files that skipped themselves, by node id.
        self.skipped: dict[str, tuple[TestCase, TestResult]] = {}
        self.hazard_watch = HazardWatch()
        self.workplace: Workplace | None = None
        self.recorder: RunRecorder | None = None
        # Plugin name -> its watch over the run.
        self._watches: dict[str, RunWatch] = {}
        self.reason = ""
        # None if no results are wanted, or if another process owns them.
        self._directory: ResultsDirectory | None = None
        # Folder of the logs in that case.
        self._kept_logs: Path | None = None
        self._selection_notes: list[tuple[str, str]] = []
        # Plugin name -> its data about the selection.
        self._selection_data: dict[str, Any] = {}
        # The reason why the shard cannot run here.
        self._refused: DisttestError | None = None

    @property
    def deadline_s(self) -> float | None:
        """End of the run on the monotonic clock."""
        # The command has been running for the seconds that it takes to import torch.
        if self.work.until_s is not None:
            return self.work.until_s
        return self.started_s + self.options.deadline if self.options.deadline else None

    def check_deadline(self) -> None:
        """Raise DeadlinePassed if the deadline of the run has passed."""
        if self.deadline_s is not None and monotonic() >= self.deadline_s:
            raise DeadlinePassed

    @property
    def ordinary(self) -> list[tuple[pytest.Item, TestCase]]:
        """Tests that run in this process."""
        return [(item, test) for item, test in self.pairs if is_ordinary(test)]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots for worlds; no GPU before the run leases it."""
        return self.devices.slots if self.devices else ()

    @property
    def runs_tests(self) -> bool:
        """Whether this process runs tests: it is not a rank, and no plugin runs them in another way."""
        left = plugin_manager().call("disttest_leaves_tests", config=self.config)
        return self.rank_order is None and not left

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Lease the GPUs of a supervised run before a test module can touch one."""
        if self._supervised:
            self._take_devices()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """End a fork that a conftest made while it was imported."""
        self.leave_if_copy()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record files that could not be collected; they are results too."""
        self.leave_if_copy()
        if report.failed:
            self.errors.append((report.nodeid, shorten(clean_text(report.longreprtext))))
        elif report.skipped:
            self.skipped[report.nodeid] = describe_skipped(report, self.config.rootpath)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End a fork that a test made: its reports do not belong to the run."""
        if self._is_recorded:
            leave_as_copy(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """End a fork here: summary and reports are the parent's."""
        self.leave_if_copy(int(exitstatus))

    def leave_if_copy(self, code: int = 0) -> None:
        """End a fork that a fixture, a hook or an import has made and that returned into pytest."""
        if self._is_recorded:
            leave_if_copy(code)

    @property
    def _is_recorded(self) -> bool:
        """Whether this process writes results or is a rank; in plain pytest without either, a fork may continue."""
        return self._supervised or self.recorder is not None or self.rank_order is not None

    def worlds_of(self, item: pytest.Item) -> tuple[WantedWorld, ...] | None:
        """Return the worlds of a marked test in this run; None if another harness owns the mark."""
        try:
            return worlds_of(item, self.options, self.host)
        except UsageError as error:
            if not self._asked and not takes_world(item):
                # disttest is merely installed, and the project uses a mark of this name for something else.
                return None
            raise UsageError(
                f"{error}; if it is the mark of another harness, name its folder in foreign-marks of [tool.disttest]"
            ) from None

    def needs_ranks(self, item: pytest.Item) -> bool:
        """Whether an item needs ranks while other tests run here, because of its marks or its class."""
        with pytests_errors():
            own = own_world(item, self.options, self.host)
        return shape_of(item) is not None or (own is not None and own.kind is not WorldKind.RANKS)

    def keep_selected(self, items: list[pytest.Item]) -> None:
        """Keep the tests that plugins select."""
        if self.rank_order is not None:
            return
        try:
            given = {"items": items, "describe": self._describe, "config": self.config}
            selections = plugin_manager().named("disttest_select_tests", TestSelection, **given)
        except DisttestError as error:
            # pytest completes the collection whatever a hook raises.
            self._refused = error
            items.clear()
            return
        for name, selection in selections.items():
            self._selection_notes += selection.notes
            if selection.data is not None:
                self._selection_data[name] = msgspec.to_builtins(selection.data)
            left = [item for item in items if item.nodeid not in selection.kept]
            self.config.hook.pytest_deselected(items=left)
            items[:] = [item for item in items if item.nodeid in selection.kept]

    def accept_tests(self, items: list[pytest.Item]) -> None:
        """Describe the collected tests, and open the journal if there is anything to record."""
        if self._refused is not None:
            self._end_early(self._refused)
        # Other projects may use marks of these names with values that are invalid here.
        if self._asked or any(self.needs_ranks(item) or needed_gpus(item) for item in items):
            self._accept_tests(items)

    def _accept_tests(self, items: list[pytest.Item]) -> None:
        self.pairs = list({item.nodeid: (item, self._describe(item)) for item in items}.values())
        check_names(test.nodeid for _, test in self.pairs)
        _check_paths(self.config.rootpath, self.options.results, tests=[test for _, test in self.pairs])
        # Only now is it known whether any test needs a GPU. A run that needs none must not fail because one
        # is broken.
        if self._broken is not None and any(test.world or needed_gpus(item) for item, test in self.pairs):
            self._end_early(self._broken)
        shapes = {test.world for _, test in self.pairs if test.world}
        findings = plugin_manager().items(
            "disttest_place_tests", str, pairs=self.pairs, config=self.config, options=self.options
        )
        isolated = any(test.kind is WorldKind.PROCESS for _, test in self.pairs)
        for _, finding in findings:
            self._say(finding)
        on_gpus = any(shape.device != "cpu" for shape in shapes) or any(map(self._takes_gpu, self.pairs))
        # Under `disttest run` the GPUs are leased already. Plain pytest leases them here, and only if a test
        # needs one.
        if on_gpus:
            self._take_devices()
            # torch is imported by now, so that a fork answers in milliseconds. The GPUs are leased, so that
            # it sees what ranks will see.
            self._ask_torch()
        if self.devices is not None and (isolated or any(shape.device == "cpu" for shape in shapes)):
            self.devices.reserve_cpu_slots(beside_gpus=on_gpus)
        if not self.options.ranks_collect and any(
            test.world and test.kind is WorldKind.RANKS for _, test in self.pairs
        ):
            for finding in reads_at_import(self.config.rootpath):
                self._say(finding)
        tests = [test for _, test in self.pairs]
        notes = plugin_manager().items("disttest_notes_on_tests", str, tests=tests, options=self.options)
        for _, note in notes:
            self._say(note)
        wanted = self.options.results or self.options.deadline
        if wanted or isolated or any(test.world for _, test in self.pairs):
            self._open_journal()

    def find_hazards(self) -> Hazards:
        """Name the reasons against forking this process, now that everything is imported."""
        hazards = self.hazard_watch.judge(on_gpus=self.host.device != "cpu")
        trouble = self.devices.fork_trouble if self.devices else ""
        return msgspec.structs.replace(hazards, elsewhere=trouble) if trouble else hazards

    def _find_devices(self) -> Devices | None:
        """Return the devices of the run; None if tests are only listed and the GPUs that they need do not work.

        Plain pytest continues without broken GPUs, because its tests may need none.
        """
        try:
            return make_devices(self.options)
        except DisttestError as error:
            if self.config.option.collectonly and isinstance(error, InfrastructureError):
                self.said.append(f"listed as if GPUs worked here: {error}")
                return None
            if self._supervised or not isinstance(error, InfrastructureError):
                raise pytest.UsageError(f"disttest: {error}") from None
            self._broken = error
            return make_devices(msgspec.structs.replace(self.options, device="cpu"))

    def _takes_gpu(self, pair: tuple[pytest.Item, TestCase]) -> bool:
        """Whether an ordinary test declares GPUs and will run."""
        item, test = pair
        return test.world is None and bool(needed_gpus(item)) and known_skip(item) is None

    def timings(self) -> Timings:
        """Read durations of earlier runs; each file that cannot be used becomes a note."""
        assert self.recorder is not None
        assert self.devices is not None
        hardware = hardware_key(self.devices.machine.hardware())
        timings, warnings = read_timings(self.work.timings, now_s=self.recorder.now(), hardware=hardware)
        for warning in warnings:
            self.recorder.noted(warning)
        return timings

    def close(self, session: pytest.Session, exit_code: int) -> None:
        """Close the journal and, unless the command does it, write the reports."""
        if self.devices is not None:
            # Before the reports, which may take seconds: another run may wait for these devices.
            self.devices.release()
        if self.recorder is None:
            return
        reason = self.reason or str(session.shouldfail or session.shouldstop or "")
        if not reason and exit_code == ExitCode.INTERRUPTED:
            reason = "the run was interrupted"
        if session.shouldstop or (session.shouldfail and session.testsfailed):
            self.recorder.not_run(str(session.shouldfail or session.shouldstop))
        self.without_worlds = self._missing_worlds(self.recorder, exit_code)
        notes = [self.without_worlds] if self.without_worlds else []
        # The supervisor cleans up, concludes and reports.
        if self._supervised:
            try:
                for note in notes:
                    self.recorder.noted(note)
                self.recorder.run_finished(exit_code, reason)
            except JournalError as error:
                session.exitstatus = error.exit_code
                print(f"disttest: {error}", file=sys.stderr)  # noqa: T201
            return
        session.exitstatus = end_run(
            self.recorder,
            self._directory,
            self._watches,
            exit_code=exit_code,
            reason=reason,
            notes=notes,
            listed=self.config.option.collectonly,
        )
        if self._kept_logs is not None and not self.recorder.has_failures:
            drop_log_folder(self._kept_logs)

    def stop(self, reason: str) -> None:
        """End the run on a test's request: tests without a result were not run, and no machine is to blame."""
        self.reason = reason
        if self.recorder is not None:
            self.recorder.not_run(reason)

    def _missing_worlds(self, recorder: RunRecorder, exit_code: int) -> str:
        # A red run needs no such note.
        if exit_code or recorder.worlds or self.config.option.collectonly:
            return ""
        return self._no_worlds.describe(self.pairs)

    def _describe(self, item: pytest.Item) -> TestCase:
        with pytests_errors():
            return describe_item(item, self.options, self.host)

    def _take_devices(self) -> None:
        """Lease the GPUs of the run; if that fails, end the run with a journal that contains the reason."""
        if self.devices is None or not self.runs_tests or self.config.option.collectonly:
            return
        left_s = self.deadline_s - monotonic() if self.deadline_s else math.inf
        # Leave time before the deadline to report that the GPUs did not become free. On a loaded machine such
        # a run ended with 124, the code of a deadline, instead of 6.
        wait_s = left_s - min(REFUSAL_S, left_s / 4)
        try:
            self.devices.acquire(name_run(self.config.args), say=self._say, timeout_s=wait_s)
        except DisttestError as error:
            self._end_early(error)

    def _ask_torch(self) -> None:
        """Check that torch can use the leased GPUs, before tests fail because it cannot."""
        if self.devices is None or not self.runs_tests or self.config.option.collectonly:
            return
        try:
            self.devices.ask_torch()
        except DisttestError as error:
            self._end_early(error)

    def _end_early(self, error: DisttestError) -> NoReturn:
        """End the run before its first test, with a journal that contains the reason."""
        self._open_journal()
        self.reason = str(error)
        leave_session(str(error), error.exit_code)

    def _say(self, message: str) -> None:
        """Print a message now, and record it once the journal is open."""
        self.said.append(message)
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"disttest: {message}")
            reporter.flush()
            self._shown.add(message)

    def _open_journal(self) -> None:
        # Plain pytest has tolerated forks up to here, because nothing was recorded.
        leave_if_copy()
        machine = self.devices.machine if self.devices else this_machine()
        workplace = self.workplace = self._make_workplace()
        # The command watches its runs itself.
        if not self._supervised:
            self._watches = watch_run(lambda: workplace.results)
        journal = Journal(workplace.results / FILE_NAME, fd=self.work.journal)
        # The command has recorded its own options already.
        started = next(journal.events(), None)
        invocation = started.invocation if isinstance(started, RunStarted) else invocation_of(self.config)
        recorder = self.recorder = RunRecorder(journal)
        recorder.run_started(
            run_id=secrets.token_hex(6),
            argv=tuple(map(str, self.config.invocation_params.args)),
            root=str(self.config.rootpath),
            hardware=machine.hardware(),
            slots=len(self.slots),
            cpu_slots=len(self.devices.cpu_slots) if self.devices else 0,
            plan_id=self.work.part.plan_id,
            shard=self.work.part.shard,
            invocation=msgspec.structs.replace(invocation, data={**invocation.data, **self._selection_data}),
        )
        for message in (*(self.devices.findings() if self.devices else ()), *self.said):
            recorder.noted(message, shown=message in self._shown)
        for nodeid, message in self._selection_notes:
            recorder.noted(message, nodeid)
        for nodeid, message in self.errors:
            recorder.collection_failed(nodeid, message)
        for test, result in self.skipped.values():
            recorder.collected(test)
            recorder.test_finished(msgspec.structs.replace(result, started_at_s=recorder.now()))
        for _, test in self.pairs:
            recorder.collected(test)
        ordinary = {test.nodeid: test for _, test in self.ordinary}
        ordinary_tests = OrdinaryTests(ordinary, recorder, retries=self.options.retries)
        ordinary_tests.record_for_junit(self.config)
        self.config.pluginmanager.register(ordinary_tests, "disttest-ordinary")
        if self._supervised:
            limits = TimeLimits(ordinary, asked="timeout" in self.options.given)
            self.config.pluginmanager.register(limits, "disttest-time-limits")
            self.config.pluginmanager.register(self.exit_blockers, "disttest-exit-blockers")

    def _make_workplace(self) -> Workplace:
        # Missing with `-p no:tmpdir`.
        factory = getattr(self.config, "_tmp_path_factory", None)
        base = factory.getbasetemp() if factory else Path(tempfile.mkdtemp(prefix="disttest-"))
        scratch = base / "disttest"
        scratch.mkdir(exist_ok=True)
        self._directory = self._take_directory()
        if self._directory is not None:
            return Workplace(home=self._directory.home, scratch=scratch)
        if self.options.results is None:
            self._kept_logs = make_log_folder()
        results = (self._kept_logs or self.options.results or scratch).absolute()
        results.mkdir(exist_ok=True)
        return Workplace(home=Home(path=str(results)), scratch=scratch)

    def _take_directory(self) -> ResultsDirectory | None:
        """Return the results directory: the command's, or one that is claimed here."""
        if self.options.results is None:
            return None
        inherited = self.config.stash.get(_INHERITED, None)
        # Plain pytest has no command that claims a directory.
        with pytests_errors():
            return inherited if inherited or self._supervised else claim(self.options.results)


def check_names(nodeids: Iterable[str]) -> None:
    """Refuse tests whose names are equal in the output: every report would merge them."""
    if not outgoing.active:
        return
    names = Counter(map(outgoing.text, nodeids))
    equal = [name for name, count in names.items() if count > 1]
    if equal:
        raise pytest.UsageError(
            f"disttest: {names[equal[0]]} tests have the name {equal[0]} once masked values are hidden: "
            "give their parameters ids of their own (pytest.param(…, id=…))"
        )


def _check_paths(*paths: Path | None, tests: Sequence[TestCase]) -> None:
    """Processes of a run exchange paths as JSON, which has no other bytes than UTF-8."""
    has_worlds = any(test.world for test in tests)
    for path in filter(None, (*paths, Path(tempfile.gettempdir())) if has_worlds else ()):
        try:
            str(path.absolute()).encode()
        except UnicodeEncodeError:
            raise pytest.UsageError(
                f"disttest: the path {clean_text(str(path.absolute()))} is not UTF-8, and tests with a world need paths "
                "that are: rename the folder, or choose another with --results or TMPDIR"
            ) from None


RUN = pytest.StashKey[RunSession]()
"""The session of a pytest configuration."""
