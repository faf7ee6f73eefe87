"""The pytest plugin: options, marks, the ``world`` fixture, and the loop that hands tests to worlds.

It is a door: each hook is a few lines that call into the packages below.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from _pytest.unittest import UnitTestCase

from disttest import __version__
from disttest.errors import ExitCode, JournalError, UsageError
from disttest.host.process import die_with_parent, leave
from disttest.host.threads import allow_threads, import_single_threaded
from disttest.model import WorldShape
from disttest.planning.options import OPTIONS
from disttest.running import collect
from disttest.running.controller import Controller, DeadlinePassed
from disttest.running.preload import load_torch, load_what_tests_use
from disttest.running.protocol import Channel
from disttest.running.pytest_reports import RERUN, masked_report
from disttest.running.quiet import quieten
from disttest.running.relay import mask_terminal
from disttest.running.session import RunSession
from disttest.running.starters import InterpreterOrder, live
from disttest.testing.world import World, current_scratch, current_world

T = TypeVar("T")
_RUN = pytest.StashKey[RunSession]()
_once_all_is_imported: list[Callable[[], None]] = []


# --- options and configuration


def pytest_addoption(parser: pytest.Parser) -> None:
    """One flag for each row of the table, ``--disttest-`` in front, since plain names belong to others."""
    group = parser.getgroup("disttest", "distributed tests")
    for option in (option for option in OPTIONS if not option.secret):
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
    group.addoption("--disttest-only", dest="disttest_only", help=internal)
    group.addoption("--disttest-host", dest="disttest_host", help=internal)
    group.addoption(
        "--disttest-node-share", dest="disttest_node_share", help="(internal) be a node of a world"
    )
    group.addoption("--disttest-view", dest="disttest_view", type=int, metavar="COLUMNS", help=internal)
    group.addoption("--disttest-rank", dest="disttest_rank", help="(internal) be a rank")
    group.addoption(
        "--disttest-ledger",
        dest="disttest_ledger",
        type=int,
        metavar="FD",
        help="(internal) the values that are hidden, for the processes of a run",
    )
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
        gc.disable()  # what torch makes stays, and looking through it costs a sixth of its import
        _once_all_is_imported.append(gc.enable)
    _once_all_is_imported.append(import_single_threaded())


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks and read the options; pytest's own terminal is there by then."""
    for mark in collect.MARKS:
        config.addinivalue_line("markers", mark)
    run = config.stash[_RUN] = RunSession(config)
    collect.remember_gpus(config, run.host.gpus)
    config.pluginmanager.register(run, "disttest-run")
    columns = config.getoption("disttest_view")
    if columns and run.runs_tests and not config.option.collectonly:
        quieten(config, columns, lambda: run.recorder is not None)


def pytest_report_header(config: pytest.Config) -> str:
    """One line: where ranks run, and how many worlds fit side by side."""
    run = config.stash[_RUN]
    sizes = run.options.world_sizes or run.host.default_sizes()
    backends = run.options.backend or (run.host.default_backend(),)
    return (
        f"disttest {__version__}: {run.devices.size if run.devices else 0} {run.host.device} slots, "
        f"backend {', '.join(backends)}, world sizes {','.join(map(str, sizes))}"
    )


# --- collection


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A rank in a fresh interpreter collects its own files only."""
    order = config.stash[_RUN].rank_order
    if order is None or collection_path.is_dir() or collection_path.name == "__init__.py":
        return None
    return None if str(collection_path) in order.modules else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each world."""
    run = metafunc.config.stash[_RUN]
    collect.parametrize_worlds(metafunc, run.options, run.host)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """One test for each world, for unittest methods too."""
    report: Any = yield
    if isinstance(collector, UnitTestCase) and report.passed:
        run = collector.config.stash[_RUN]
        try:
            report.result = list(collect.expand_methods(report.result, run.options, run.host))
        except pytest.Collector.CollectError as error:
            return pytest.CollectReport(collector.nodeid, "failed", str(error), [])  # type: ignore[return-value]
    return report  # type: ignore[no-any-return]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of this shard of the plan."""
    config.stash[_RUN].keep_planned(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Everything that is imported is imported: load torch if ranks will need it, and open the journal."""
    config = session.config
    if not config.option.collectonly and any(map(collect.needs_ranks, session.items)):
        load_torch()
        load_what_tests_use(config.rootpath)
    run = config.stash[_RUN]
    elsewhere = config.option.collectonly and run.devices is None  # the runners have a torch of their own
    try:
        if not elsewhere:
            collect.check_backends(session.items, run.options)
    except UsageError as error:
        raise pytest.UsageError(f"disttest: {error}") from None
    while _once_all_is_imported:
        _once_all_is_imported.pop()()
    if config.stash[_RUN].runs_tests:
        with _journal_is_written():
            config.stash[_RUN].take(session.items)


# --- running


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """What pytest prints has nothing in it that is to be hidden."""
    mask_terminal(session.config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Hide what is to be hidden before anybody reads the report."""
    report: Any = yield
    return masked_report(item.config, report)  # type: ignore[return-value]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Worlds first, while this process is clean; then the ordinary tests, by pytest's own loop."""
    with _journal_is_written():
        return _run_tests(session)


def _run_tests(session: pytest.Session) -> bool | None:
    run = session.config.stash[_RUN]
    if run.rank_order is not None:
        _be_a_rank(session, run.rank_order, run.errors)
    if share := session.config.getoption("disttest_node_share"):
        from disttest.cluster.share import serve_share

        serve_share(session, run, Path(share))
        return True
    if (
        not run.runs_tests
        or session.config.option.collectonly
        or run.recorder is None
        or run.workplace is None
        or run.devices is None
    ):
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        return None  # pytest's own loop says what it always says
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None and reporter.verbosity <= 0:
        reporter.showfspath = False  # worlds side by side would print a file name for every dot
    worlds = [(item, test) for item, test in run.pairs if test.world is not None]
    controller = Controller(
        session,
        run.options,
        run.devices,
        run.host,
        run.recorder,
        run.workplace,
        deadline_s=run.deadline_s,
        timings=run.timings(),
        failed_first=session.config.getoption("disttest_failed_first"),
    )
    try:
        controller.run(worlds)
    except DeadlinePassed:
        run.reason = f"the deadline of the run ({run.options.deadline:g} s) passed"
        pytest.exit(run.reason, returncode=ExitCode.DEADLINE)
    allow_threads(run.devices.machine.cpus)
    ordinary = [item for item, test in run.pairs if test.world is None]
    _run_ordinary(session, ordinary)
    return True


@contextlib.contextmanager
def _journal_is_written() -> Iterator[None]:
    """Results that can not be kept are no results: the run ends, with one clear line."""
    try:
        yield
    except JournalError as error:
        pytest.exit(f"disttest: {error}", returncode=error.exit_code)


def _run_ordinary(session: pytest.Session, items: list[pytest.Item]) -> None:
    for index, item in enumerate(items):
        following = items[index + 1] if index + 1 < len(items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)


def _be_a_rank(session: pytest.Session, order: InterpreterOrder, errors: list[tuple[str, str]]) -> None:
    if errors:
        for nodeid, message in errors:
            os.write(2, f"this rank could not collect {nodeid}:\n{message}\n".encode())
        leave(ExitCode.INTERRUPTED)
    items = {item.nodeid: item for item in session.items}
    live(order.spec, Channel(socket.socket(fileno=order.channel_fd)), session, items)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Close the journal."""
    run = session.config.stash.get(_RUN, None)
    if run is not None:
        run.close(session, int(exitstatus))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave quickly: the interpreter's last collections need not walk all of torch (a third of a second)."""
    if config.getoption("disttest_guarded"):
        gc.freeze()


# --- fixtures


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    """The world that this test runs in, its process group initialised: rank, size, device, backend, group."""
    return _or_fail(current_world, request.config)


@pytest.fixture
def world_tmp_path(request: pytest.FixtureRequest) -> Path:
    """A directory that all ranks of the test share (``tmp_path`` is each rank's own)."""
    return _or_fail(current_scratch, request.config)


@pytest.fixture(name=collect.SHAPE_FIXTURE)
def _shape(request: pytest.FixtureRequest) -> WorldShape:
    """Carries the shape of the world through the test's parameters."""
    shape: WorldShape = request.param
    return shape


def _or_fail(provide: Callable[[], T], config: pytest.Config) -> T:
    try:
        return provide()
    except LookupError as error:
        under_xdist = hasattr(config, "workerinput")
        hint = "; pytest-xdist can not run worlds: leave -n out, disttest runs them side by side itself"
        pytest.fail(f"{error}{hint if under_xdist else ''}", pytrace=False)


def pytest_report_teststatus(report: Any) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """How an attempt shows that is followed by another one."""
    if getattr(report, "outcome", None) != RERUN:
        return None
    return RERUN, "R", ("RERUN", {"yellow": True})


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which tests are flaky, and which are red here that torch's own harness would have passed."""
    run = config.stash.get(_RUN, None)
    if run is None or run.recorder is None:
        return
    flaky = run.recorder.flaky
    if flaky:
        terminalreporter.section("flaky tests")
        for line in flaky.values():
            terminalreporter.line(line)
    green = run.recorder.false_greens
    if green:
        terminalreporter.section("false greens avoided")
        terminalreporter.line(f"torch's own rules would have passed {len(green)} of the failed tests:")
        for nodeid in green:
            terminalreporter.line(f"  {nodeid}")
