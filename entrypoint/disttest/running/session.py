"""One pytest session as disttest sees it: what was asked, what was collected, where its journal is."""

from __future__ import annotations

import secrets
import tempfile
import time
from pathlib import Path

import pytest

from disttest.errors import ExitCode, UsageError
from disttest.host.devices import detect_machine
from disttest.model import TestCase
from disttest.planning.options import OPTIONS, RunOptions, resolve_options
from disttest.planning.plan import Plan, decode_plan, select
from disttest.planning.timings import Timings, hardware_key
from disttest.reports import write_reports
from disttest.results.directory import claim
from disttest.results.durations import read_timings
from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, Journal, read_events
from disttest.running import collect
from disttest.running.controller import Workplace
from disttest.running.ordinary import OrdinaryTests
from disttest.running.protocol import clean_text
from disttest.running.recorder import Recorder
from disttest.running.starters import InterpreterOrder, read_order
from disttest.running.sweep import Sweep


class RunSession:
    """The state between hooks; one per pytest configuration.

    Raises:
        pytest.UsageError: an option makes no sense.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.started_s = time.monotonic()
        self.options = _options_of(config)
        self.machine = detect_machine()
        gpus = len(self.machine.usable_gpus)
        device = self.options.device if self.options.device != "auto" else "cuda" if gpus else "cpu"
        self.host = collect.Host(gpus=gpus, device=device)
        self.slots = self.machine.slots(device, self.options.slots or None)
        self.rank_order = _rank_order(config)
        self.pairs: list[tuple[pytest.Item, TestCase]] = []
        self.errors: list[tuple[str, str]] = []
        self.workplace: Workplace | None = None
        self.recorder: Recorder | None = None
        self.reason = ""
        self._guarded = bool(config.getoption("disttest_guarded"))
        self._plan = _plan_of(config)
        self._shard: int = config.getoption("disttest_shard")
        self._sweep = Sweep()
        self._plan_notes: tuple[tuple[str, str], ...] = ()

    @property
    def deadline_s(self) -> float | None:
        """When the run must be over, on the monotonic clock."""
        return self.started_s + self.options.deadline if self.options.deadline else None

    @property
    def runs_tests(self) -> bool:
        """Whether this process runs the tests: not as a rank, and not where pytest-xdist hands them out."""
        under_xdist = self.config.pluginmanager.hasplugin("dsession") or hasattr(self.config, "workerinput")
        return self.rank_order is None and not under_xdist

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember files that could not be collected; they are results too."""
        if report.failed:
            self.errors.append((report.nodeid, clean_text(report.longreprtext)))

    def keep_planned(self, items: list[pytest.Item]) -> None:
        """Keep the tests of this shard, if the run has a plan."""
        if self._plan is None or self.rank_order is not None:
            return
        selection = select(self._plan, self._shard, [self._describe(item) for item in items])
        self._plan_notes = selection.notes()
        mine = set(selection.run)
        self.config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in mine])
        items[:] = [item for item in items if item.nodeid in mine]

    def take(self, items: list[pytest.Item]) -> None:
        """Describe what was collected, and open the journal if there is anything to write into it."""
        self.pairs = list({item.nodeid: (item, self._describe(item)) for item in items}.values())
        if self.options.results or any(test.world for _, test in self.pairs):
            self._open_journal()

    def timings(self) -> Timings:
        """What earlier runs took; files that can not be used are a note each."""
        assert self.recorder is not None
        paths = [Path(path) for path in self.config.getoption("disttest_timings")]
        hardware = hardware_key(self.machine.hardware())
        timings, warnings = read_timings(paths, now_s=self.recorder.now(), hardware=hardware)
        for warning in warnings:
            self.recorder.noted(warning)
        return timings

    def close(self, session: pytest.Session, exit_code: int) -> None:
        """Close the journal and, unless the command does it, write the reports."""
        if self.recorder is None or self.workplace is None:
            return
        reason = self.reason or str(session.shouldfail or session.shouldstop or "")
        if not reason and exit_code == ExitCode.INTERRUPTED:
            reason = "the run was interrupted"
        if not self._guarded:
            for message, nodeid in self._sweep.clean(fold(read_events(self.workplace.results / FILE_NAME))):
                self.recorder.noted(message, nodeid)
        self.recorder.run_finished(exit_code, reason)
        if self.options.results and not self._guarded and not self.config.option.collectonly:
            write_reports(fold(read_events(self.workplace.results / FILE_NAME)), self.workplace.results)

    def _describe(self, item: pytest.Item) -> TestCase:
        try:
            return collect.describe_item(item, self.options, self.host)
        except UsageError as error:
            raise pytest.UsageError(f"disttest: {error}") from None

    def _open_journal(self) -> None:
        workplace = self.workplace = self._make_workplace()
        recorder = self.recorder = Recorder(Journal(workplace.results / FILE_NAME))
        recorder.run_started(
            run_id=secrets.token_hex(6),
            argv=tuple(map(str, self.config.invocation_params.args)),
            root=str(self.config.rootpath),
            hardware=self.machine.hardware(),
            slots=len(self.slots),
            plan_id=self._plan.plan_id if self._plan else "",
            shard=self._shard if self._plan else None,
        )
        for nodeid, message in self._plan_notes:
            recorder.noted(message, nodeid)
        for nodeid, message in self.errors:
            recorder.collection_failed(nodeid, message)
        for _, test in self.pairs:
            recorder.collected(test)
        ordinary = {test.nodeid: test for _, test in self.pairs if test.world is None}
        self.config.pluginmanager.register(OrdinaryTests(ordinary, recorder), "disttest-ordinary")

    def _make_workplace(self) -> Workplace:
        factory = getattr(self.config, "_tmp_path_factory", None)
        base = factory.getbasetemp() if factory else Path(tempfile.mkdtemp(prefix="disttest-"))
        scratch = base / "disttest"
        scratch.mkdir(exist_ok=True)
        if self.options.results is None:
            results = scratch / "results"
            results.mkdir(exist_ok=True)
        elif self._guarded:
            results = self.options.results.absolute()
        else:
            results = _claim(self.options.results)
        return Workplace(results=results, scratch=scratch)


def _options_of(config: pytest.Config) -> RunOptions:
    flags = {option.field: config.getoption(f"disttest_{option.field}") for option in OPTIONS}
    try:
        return resolve_options(flags)
    except UsageError as error:
        raise pytest.UsageError(f"disttest: {error}") from None


def _rank_order(config: pytest.Config) -> InterpreterOrder | None:
    path = config.getoption("disttest_rank")
    return read_order(Path(path)) if path else None


def _plan_of(config: pytest.Config) -> Plan | None:
    path = config.getoption("disttest_plan")
    return decode_plan(Path(path).read_bytes(), path) if path else None


def _claim(path: Path) -> Path:
    try:
        return claim(path)
    except UsageError as error:
        raise pytest.UsageError(f"disttest: {error}") from None
