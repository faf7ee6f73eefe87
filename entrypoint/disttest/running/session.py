"""One pytest session as disttest sees it: what was asked, what was collected, where its journal is."""

from __future__ import annotations

import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from disttest.errors import DisttestError, ExitCode, JournalError, ReportError, UsageError
from disttest.host.devices import detect_machine
from disttest.masking import masker
from disttest.model import FlakyRule, Invocation, Slot, TestCase
from disttest.planning.options import OPTIONS, RunOptions, given_options, resolve_options
from disttest.planning.plan import Plan, check_device, decode_plan, select
from disttest.planning.targets import suites_dir
from disttest.planning.timings import Timings, hardware_key
from disttest.reports import write_reports
from disttest.results.directory import claim
from disttest.results.durations import read_timings
from disttest.results.events import RunStarted
from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, Journal, read_events
from disttest.running import collect
from disttest.running.controller import Workplace
from disttest.running.devices import LONGEST_WAIT_S, Devices, name_run
from disttest.running.ordinary import OrdinaryTests
from disttest.running.protocol import clean_text
from disttest.running.recorder import Recorder
from disttest.running.relay import REMOVED, hide_what_was_learned
from disttest.running.starters import InterpreterOrder, read_order


class RunSession:
    """The state between hooks; one per pytest configuration.

    Raises:
        pytest.UsageError: an option makes no sense.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.started_s = time.monotonic()
        self.options = _options_of(config)
        masker.open_ledger(config.getoption("disttest_ledger"))
        masker.hide(self.options.mask)
        self.rank_order = _rank_order(config)
        foreign = _foreign_host(config)
        self.devices = None if self.rank_order or foreign else _devices_of(self.options)
        self.host = self.rank_order.host if self.rank_order else foreign or _host_of(self.devices)
        self.pairs: list[tuple[pytest.Item, TestCase]] = []
        self.errors: list[tuple[str, str]] = []
        self.workplace: Workplace | None = None
        self.recorder: Recorder | None = None
        self.reason = ""
        self._guarded = bool(config.getoption("disttest_guarded"))
        self._plan = _plan_of(config)
        self._only = _only_of(config)
        self._shard: int = config.getoption("disttest_shard")
        self._plan_notes: tuple[tuple[str, str], ...] = ()
        self._refused: DisttestError | None = None
        """Why the shard can not be run here."""
        self._said: list[str] = []

    @property
    def deadline_s(self) -> float | None:
        """When the run must be over, on the monotonic clock."""
        return self.started_s + self.options.deadline if self.options.deadline else None

    @property
    def slots(self) -> tuple[Slot, ...]:
        """What worlds may sit on; no GPU before the run holds it."""
        return self.devices.slots if self.devices else ()

    @property
    def runs_tests(self) -> bool:
        """Whether this process runs the tests: not as a rank, and not where pytest-xdist hands them out."""
        under_xdist = self.config.pluginmanager.hasplugin("dsession") or hasattr(self.config, "workerinput")
        return self.rank_order is None and not under_xdist

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Take the GPUs of a run of the command before a test module can touch one."""
        if self._guarded:
            self._take_devices()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember files that could not be collected; they are results too."""
        if report.failed:
            self.errors.append((report.nodeid, clean_text(report.longreprtext)))

    def keep_planned(self, items: list[pytest.Item]) -> None:
        """Keep the tests of this shard, if the run has a plan."""
        if self._only is not None and self.rank_order is None:
            self._keep(items, self._only)
        if self._plan is None or self.rank_order is not None:
            return
        selection = select(self._plan, self._shard, [self._describe(item) for item in items])
        try:
            check_device(self._plan, self._shard, selection, self.host.device)
        except DisttestError as error:
            self._refused = error  # pytest finishes the collection whatever is raised in it
            items.clear()
            return
        self._plan_notes = selection.notes()
        self._keep(items, frozenset(selection.run))

    def _keep(self, items: list[pytest.Item], mine: frozenset[str]) -> None:
        self.config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in mine])
        items[:] = [item for item in items if item.nodeid in mine]

    def take(self, items: list[pytest.Item]) -> None:
        """Describe what was collected, and open the journal if there is anything to write into it."""
        if self._refused is not None:
            self._end_early(self._refused)
        self.pairs = list({item.nodeid: (item, self._describe(item)) for item in items}.values())
        _check_names(test.nodeid for _, test in self.pairs)
        # Under plain pytest, tests that need no world are none of our business: no GPU is taken for them.
        shapes = {test.world for _, test in self.pairs if test.world}
        on_gpus = any(shape.device != "cpu" for shape in shapes)
        if on_gpus:
            self._take_devices()
        if self.devices is not None and any(shape.device == "cpu" for shape in shapes):
            self.devices.seat_cpu_worlds(beside_gpus=on_gpus)
        if self.options.results or any(test.world for _, test in self.pairs):
            self._open_journal()

    def timings(self) -> Timings:
        """What earlier runs took; files that can not be used are a note each."""
        assert self.recorder is not None
        paths = [Path(path) for path in self.config.getoption("disttest_timings")]
        assert self.devices is not None
        hardware = hardware_key(self.devices.machine.hardware())
        timings, warnings = read_timings(paths, now_s=self.recorder.now(), hardware=hardware)
        for warning in warnings:
            self.recorder.noted(warning)
        return timings

    def close(self, session: pytest.Session, exit_code: int) -> None:
        """Close the journal and, unless the command does it, write the reports."""
        if self.devices is not None:
            self.devices.release()
        if self.recorder is None or self.workplace is None:
            return
        reason = self.reason or str(session.shouldfail or session.shouldstop or "")
        if not reason and exit_code == ExitCode.INTERRUPTED:
            reason = "the run was interrupted"
        if exit_code == ExitCode.PASSED and self.recorder.flaky and self.options.flaky is FlakyRule.FAIL:
            exit_code = session.exitstatus = ExitCode.FAILED
        try:
            self.recorder.run_finished(exit_code, reason)
        except JournalError as error:
            session.exitstatus = error.exit_code
            print(f"disttest: {error}", file=sys.stderr)  # noqa: T201
        if self.options.results and not self._guarded and not self.config.option.collectonly:
            self._write_reports(session, self.workplace.results)

    def _write_reports(self, session: pytest.Session, results: Path) -> None:
        assert self.recorder is not None
        if self.recorder.journal.restore():
            self.recorder.noted(REMOVED)
        hide_what_was_learned(results)
        try:
            write_reports(fold(self.recorder.journal.events()), results)
        except ReportError as error:
            session.exitstatus = session.exitstatus or error.exit_code
            print(f"disttest: {error}", file=sys.stderr)  # noqa: T201

    def _describe(self, item: pytest.Item) -> TestCase:
        try:
            return collect.describe_item(item, self.options, self.host)
        except UsageError as error:
            raise pytest.UsageError(f"disttest: {error}") from None

    def _take_devices(self) -> None:
        """Lease the GPUs of the run; without them it ends here, with a journal that says why."""
        if self.devices is None or not self.runs_tests or self.config.option.collectonly:
            return
        left_s = self.deadline_s - time.monotonic() if self.deadline_s else LONGEST_WAIT_S
        try:
            self.devices.take(
                name_run(self.config.args), say=self._say, timeout_s=min(left_s, LONGEST_WAIT_S)
            )
        except DisttestError as error:
            self._end_early(error)

    def _end_early(self, error: DisttestError) -> NoReturn:
        """End the run before it has a test, with a journal that says why."""
        self._open_journal()
        self.reason = str(error)
        pytest.exit(f"disttest: {error}", returncode=error.exit_code)

    def _say(self, message: str) -> None:
        """Tell the terminal now, and the journal as soon as there is one."""
        self._said.append(message)
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"disttest: {message}")
            reporter.flush()

    def _open_journal(self) -> None:
        machine = self.devices.machine if self.devices else detect_machine()
        workplace = self.workplace = self._make_workplace()
        recorder = self.recorder = Recorder(Journal(workplace.results / FILE_NAME))
        recorder.run_started(
            run_id=secrets.token_hex(6),
            argv=tuple(map(str, self.config.invocation_params.args)),
            root=str(self.config.rootpath),
            hardware=machine.hardware(),
            slots=len(self.slots),
            cpu_slots=len(self.devices.cpu_slots) if self.devices else 0,
            plan_id=self._plan.plan_id if self._plan else "",
            shard=self._shard if self._plan else None,
            invocation=self._invocation(workplace.results),
        )
        for message in (*(self.devices.findings() if self.devices else ()), *self._said):
            recorder.noted(message)
        for nodeid, message in self._plan_notes:
            recorder.noted(message, nodeid)
        for nodeid, message in self.errors:
            recorder.collection_failed(nodeid, message)
        for _, test in self.pairs:
            recorder.collected(test)
        ordinary = {test.nodeid: test for _, test in self.pairs if test.world is None}
        self.config.pluginmanager.register(
            OrdinaryTests(ordinary, recorder, retries=self.options.retries), "disttest-ordinary"
        )

    def _invocation(self, results: Path) -> Invocation:
        """What the command was asked (its record is there already), or plain pytest."""
        started = next(read_events(results / FILE_NAME), None)
        return started.invocation if isinstance(started, RunStarted) else _invocation_of(self.config)

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


def _flags_of(config: pytest.Config) -> dict[str, str | None]:
    return {option.field: config.getoption(f"disttest_{option.field}", None) for option in OPTIONS}


def _invocation_of(config: pytest.Config) -> Invocation:
    """What plain pytest was asked."""
    asked = config.invocation_params
    positional = config.getoption("file_or_dir") or ()
    return Invocation(
        cwd=str(asked.dir),
        bundled=config.rootpath == suites_dir(),
        options=given_options(_flags_of(config)),
        pytest_args=tuple(arg for arg in _without_ours(map(str, asked.args)) if arg not in positional),
    )


def _without_ours(arguments: Iterable[str]) -> Iterator[str]:
    """Arguments for pytest without the plugin's own, whose values may stand in the next word."""
    words = iter(arguments)
    for word in words:
        if not word.startswith("--disttest-"):
            yield word
        elif "=" not in word and word != "--disttest-failed-first":
            next(words, None)


def _check_names(nodeids: Iterable[str]) -> None:
    """Two tests whose names are equal once values are hidden would be one in every report."""
    if not masker.active:
        return
    names = Counter(map(masker.text, nodeids))
    equal = [name for name, count in names.items() if count > 1]
    if equal:
        raise pytest.UsageError(
            f"disttest: {names[equal[0]]} tests are called {equal[0]} once masked values are hidden: "
            "give their parameters ids of their own (pytest.param(…, id=…))"
        )


def _options_of(config: pytest.Config) -> RunOptions:
    try:
        return resolve_options(_flags_of(config))
    except UsageError as error:
        raise pytest.UsageError(f"disttest: {error}") from None


def _devices_of(options: RunOptions) -> Devices:
    try:
        return Devices(options)
    except DisttestError as error:
        raise pytest.UsageError(f"disttest: {error}") from None


def _host_of(devices: Devices | None) -> collect.Host:
    assert devices is not None
    gpus = devices.size if devices.device != "cpu" else 0
    return collect.Host(
        gpus=gpus, device=devices.device, slices=devices.on_slices, gloo_on_cpu=devices.gloo_on_cpu
    )


def _rank_order(config: pytest.Config) -> InterpreterOrder | None:
    path = config.getoption("disttest_rank")
    return read_order(Path(path)) if path else None


def _foreign_host(config: pytest.Config) -> collect.Host | None:
    """The machine to collect for, where that is not this one: a node of a cluster."""
    text = config.getoption("disttest_host")
    return msgspec.json.decode(text, type=collect.Host) if text else None


def _only_of(config: pytest.Config) -> frozenset[str] | None:
    """The tests that a job was given of all that its targets have."""
    path = config.getoption("disttest_only")
    return frozenset(msgspec.json.decode(Path(path).read_bytes(), type=tuple[str, ...])) if path else None


def _plan_of(config: pytest.Config) -> Plan | None:
    path = config.getoption("disttest_plan")
    return decode_plan(Path(path).read_bytes(), path) if path else None


def _claim(path: Path) -> Path:
    try:
        return claim(path)
    except UsageError as error:
        raise pytest.UsageError(f"disttest: {error}") from None
