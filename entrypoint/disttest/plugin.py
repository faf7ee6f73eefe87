"""The pytest plugin: options, marks, the ``world`` fixture, and the loop that hands tests to worlds.

It is a door: each hook is a few lines that call into the packages below.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from _pytest.unittest import UnitTestCase

from disttest import __version__
from disttest.errors import ExitCode, UsageError
from disttest.host.devices import detect_machine
from disttest.host.process import die_with_parent, leave
from disttest.host.threads import allow_threads, import_single_threaded
from disttest.model import TestCase, WorldShape
from disttest.planning.options import OPTIONS, RunOptions, resolve_options
from disttest.planning.plan import Plan, decode_plan, select
from disttest.planning.timings import Timings, hardware_key
from disttest.reports import write_reports
from disttest.results.directory import claim
from disttest.results.durations import read_timings
from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, Journal, read_events
from disttest.running import collect
from disttest.running.controller import Controller, DeadlinePassed, Workplace, load_torch
from disttest.running.ordinary import OrdinaryTests
from disttest.running.protocol import Channel, clean_text
from disttest.running.recorder import Recorder
from disttest.running.starters import InterpreterOrder, live, read_order
from disttest.testing.world import World, current_scratch, current_world


class _State:
    """What the plugin knows of this pytest run."""

    def __init__(self, config: pytest.Config) -> None:
        self.started_s = time.monotonic()
        self.options = _options_of(config)
        self.machine = detect_machine()
        gpus = len(self.machine.usable_gpus)
        device = self.options.device if self.options.device != "auto" else "cuda" if gpus else "cpu"
        self.host = collect.Host(gpus=gpus, device=device)
        self.slots = self.machine.slots(device, self.options.slots or None)
        self.rank_order = _rank_order(config)
        self.guarded = bool(config.getoption("disttest_guarded"))
        self.pairs: list[tuple[pytest.Item, TestCase]] = []
        self.errors: list[tuple[str, str]] = []
        self.workplace: Workplace | None = None
        self.recorder: Recorder | None = None
        self.plan = _plan_of(config)
        self.shard: int = config.getoption("disttest_shard")
        self.plan_notes: tuple[tuple[str, str], ...] = ()
        self.reason = ""

    @property
    def deadline_s(self) -> float | None:
        """When the run must be over, on the monotonic clock."""
        return self.started_s + self.options.deadline if self.options.deadline else None


T = TypeVar("T")
_STATE = pytest.StashKey[_State]()
_undo_single_threaded: list[Callable[[], None]] = []


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


# --- options and configuration


def pytest_addoption(parser: pytest.Parser) -> None:
    """One flag for each row of the table, ``--disttest-`` in front, since plain names belong to others."""
    group = parser.getgroup("disttest", "distributed tests")
    for option in OPTIONS:
        group.addoption(
            f"--disttest-{option.name}",
            dest=f"disttest_{option.field}",
            metavar=option.metavar,
            help=f"{option.help} [{option.variable}]",
        )
    internal = "(internal) given by the disttest command"
    group.addoption("--disttest-plan", dest="disttest_plan", help=internal)
    group.addoption("--disttest-shard", dest="disttest_shard", type=int, default=0, help=internal)
    group.addoption("--disttest-timings", dest="disttest_timings", action="append", default=[], help=internal)
    group.addoption(
        "--disttest-failed-first", dest="disttest_failed_first", action="store_true", help=internal
    )
    group.addoption("--disttest-rank", dest="disttest_rank", help="(internal) be a rank")
    group.addoption(
        "--disttest-guarded",
        dest="disttest_guarded",
        type=int,
        default=0,
        metavar="PID",
        help="(internal) the disttest command with this pid watches this process and writes the reports",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before any conftest can import numpy or torch, or do worse."""
    known = early_config.known_args_namespace
    if known.disttest_guarded and not known.disttest_rank:
        die_with_parent(known.disttest_guarded)
    _undo_single_threaded.append(import_single_threaded())


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks and read the options."""
    for mark in collect.MARKS:
        config.addinivalue_line("markers", mark)
    state = config.stash[_STATE] = _State(config)
    collect.remember_gpus(config, state.host.gpus)
    config.pluginmanager.register(_CollectionErrors(state), "disttest-collection")


def pytest_report_header(config: pytest.Config) -> str:
    """One line: where ranks run, and how many worlds fit side by side."""
    state = config.stash[_STATE]
    sizes = state.options.world_sizes or state.host.default_sizes()
    backends = state.options.backend or (state.host.default_backend(),)
    return (
        f"disttest {__version__}: {len(state.slots)} {state.host.device} slots, "
        f"backend {', '.join(backends)}, world sizes {','.join(map(str, sizes))}"
    )


# --- collection


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A rank in a fresh interpreter collects its own files only."""
    order = config.stash[_STATE].rank_order
    if order is None or collection_path.is_dir() or collection_path.name == "__init__.py":
        return None
    return None if str(collection_path) in order.modules else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each world."""
    state = metafunc.config.stash[_STATE]
    collect.parametrize_worlds(metafunc, state.options, state.host)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """One test for each world, for unittest methods too."""
    report: Any = yield
    if isinstance(collector, UnitTestCase) and report.passed:
        state = collector.config.stash[_STATE]
        try:
            report.result = list(collect.expand_methods(report.result, state.options, state.host))
        except pytest.Collector.CollectError as error:
            return pytest.CollectReport(collector.nodeid, "failed", str(error), [])  # type: ignore[return-value]
    return report  # type: ignore[no-any-return]


class _CollectionErrors:
    """Remembers files that could not be collected; they are results too."""

    def __init__(self, state: _State) -> None:
        self._state = state

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A collector has been asked for its children."""
        if report.failed:
            self._state.errors.append((report.nodeid, clean_text(report.longreprtext)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of this shard of the plan."""
    state = config.stash[_STATE]
    if state.plan is None or state.rank_order is not None:
        return
    selection = select(
        state.plan, state.shard, [collect.describe_item(item, state.options, state.host) for item in items]
    )
    state.plan_notes = selection.notes()
    mine = set(selection.run)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in mine])
    items[:] = [item for item in items if item.nodeid in mine]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Describe what was collected, and open the journal."""
    config = session.config
    state = config.stash[_STATE]
    if not config.option.collectonly and any(collect.shape_of(item) for item in session.items):
        load_torch()
    while _undo_single_threaded:
        _undo_single_threaded.pop()()
    if state.rank_order is not None or not _is_ours(config):
        return
    try:
        tests = {
            item.nodeid: (item, collect.describe_item(item, state.options, state.host))
            for item in session.items
        }
    except UsageError as error:
        raise pytest.UsageError(f"disttest: {error}") from None
    state.pairs = list(tests.values())
    if state.options.results or any(test.world for _, test in state.pairs):
        _open_journal(session, state)


def _is_ours(config: pytest.Config) -> bool:
    """Whether this process runs the tests: not when xdist hands them out."""
    return not config.pluginmanager.hasplugin("dsession")


def _open_journal(session: pytest.Session, state: _State) -> None:
    workplace = state.workplace = _workplace(session.config, state)
    journal = Journal(workplace.results / FILE_NAME)
    recorder = state.recorder = Recorder(journal)
    recorder.run_started(
        run_id=secrets.token_hex(6),
        argv=tuple(map(str, session.config.invocation_params.args)),
        root=str(session.config.rootpath),
        hardware=state.machine.hardware(),
        slots=len(state.slots),
        plan_id=state.plan.plan_id if state.plan else "",
        shard=state.shard if state.plan else None,
    )
    for nodeid, message in state.plan_notes:
        recorder.noted(message, nodeid)
    for nodeid, message in state.errors:
        recorder.collection_failed(nodeid, message)
    for _, test in state.pairs:
        recorder.collected(test)
    ordinary = {test.nodeid: test for _, test in state.pairs if test.world is None}
    session.config.pluginmanager.register(OrdinaryTests(ordinary, recorder), "disttest-ordinary")


def _workplace(config: pytest.Config, state: _State) -> Workplace:
    factory = getattr(config, "_tmp_path_factory", None)
    base = factory.getbasetemp() if factory else Path(tempfile.mkdtemp(prefix="disttest-"))
    scratch = base / "disttest"
    scratch.mkdir(exist_ok=True)
    if state.options.results is None:
        results = scratch / "results"
        results.mkdir(exist_ok=True)
    elif state.guarded:
        results = state.options.results.absolute()
    else:
        results = _claim(state.options.results)
    return Workplace(results=results, scratch=scratch)


def _claim(path: Path) -> Path:
    try:
        return claim(path)
    except UsageError as error:
        raise pytest.UsageError(f"disttest: {error}") from None


# --- running


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Worlds first, while this process is clean; then the ordinary tests, by pytest's own loop."""
    state = session.config.stash[_STATE]
    if state.rank_order is not None:
        _be_a_rank(session, state.rank_order, state.errors)
    if session.config.option.collectonly or state.recorder is None or state.workplace is None:
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        return None  # pytest's own loop says what it always says
    worlds = [(item, test) for item, test in state.pairs if test.world is not None]
    controller = Controller(
        session,
        state.options,
        state.slots,
        state.recorder,
        state.workplace,
        deadline_s=state.deadline_s,
        timings=_timings(session.config, state),
        failed_first=session.config.getoption("disttest_failed_first"),
    )
    try:
        controller.run(worlds)
    except DeadlinePassed:
        state.reason = f"the deadline of the run ({state.options.deadline:g} s) passed"
        pytest.exit(state.reason, returncode=ExitCode.DEADLINE)
    allow_threads(state.machine.cpus)
    ordinary = [item for item, test in state.pairs if test.world is None]
    _run_ordinary(session, ordinary)
    return True


def _timings(config: pytest.Config, state: _State) -> Timings:
    """What earlier runs took; files that can not be used are a note each."""
    recorder = state.recorder
    assert recorder is not None
    paths = [Path(path) for path in config.getoption("disttest_timings")]
    hardware = hardware_key(state.machine.hardware())
    timings, warnings = read_timings(paths, now_s=recorder.now(), hardware=hardware)
    for warning in warnings:
        recorder.noted(warning)
    return timings


def _run_ordinary(session: pytest.Session, items: list[pytest.Item]) -> None:
    for index, item in enumerate(items):
        following = items[index + 1] if index + 1 < len(items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)


def _be_a_rank(session: pytest.Session, order: InterpreterOrder, errors: list[tuple[str, str]]) -> None:
    import socket

    if errors:
        for nodeid, message in errors:
            os.write(2, f"this rank could not collect {nodeid}:\n{message}\n".encode())
        leave(ExitCode.INTERRUPTED)
    items = {item.nodeid: item for item in session.items}
    live(order.spec, Channel(socket.socket(fileno=order.channel_fd)), session, items)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Close the journal and, unless the command does it, write the reports."""
    state = session.config.stash.get(_STATE, None)
    if state is None or state.recorder is None or state.workplace is None:
        return
    reason = state.reason or str(session.shouldfail or session.shouldstop or "")
    if not reason and exitstatus == ExitCode.INTERRUPTED:
        reason = "the run was interrupted"
    state.recorder.run_finished(int(exitstatus), reason)
    if state.options.results and not state.guarded and not session.config.option.collectonly:
        write_reports(fold(read_events(state.workplace.results / FILE_NAME)), state.workplace.results)


# --- fixtures


@pytest.fixture
def world() -> World:
    """The world that this test runs in, its process group initialised: rank, size, device, backend, group."""
    return _or_fail(current_world)


@pytest.fixture
def world_tmp_path() -> Path:
    """A directory that all ranks of the test share (``tmp_path`` is each rank's own)."""
    return _or_fail(current_scratch)


@pytest.fixture(name=collect.SHAPE_FIXTURE)
def _shape(request: pytest.FixtureRequest) -> WorldShape:
    """Carries the shape of the world through the test's parameters."""
    shape: WorldShape = request.param
    return shape


def _or_fail(provide: Callable[[], T]) -> T:
    try:
        return provide()
    except LookupError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which tests are red here that torch's own harness would have passed."""
    state = config.stash.get(_STATE, None)
    if state is None or state.recorder is None:
        return
    green = state.recorder.false_greens
    if green:
        terminalreporter.section("false greens avoided")
        terminalreporter.line(f"torch's own rules would have passed {len(green)} of the failed tests:")
        for nodeid in green:
            terminalreporter.line(f"  {nodeid}")
