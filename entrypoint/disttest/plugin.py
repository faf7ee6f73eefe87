"""The pytest plugin: options, marks, the ``world`` fixture, and the loop that passes tests to worlds.

Each hook is a few lines that call into other packages. A pytest process can have the roles that
:mod:`disttest.runtime.controller.orders` lists. PYTEST_DONT_REWRITE: its assertions are not rewritten.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import gc
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from _pytest.terminal import TerminalReporter

from disttest import __version__
from disttest.errors import ExitCode, JournalError, UsageError
from disttest.host.compute_threads import import_single_threaded
from disttest.host.copies import note_original
from disttest.host.fork_memory import freeze, is_frozen
from disttest.host.imports import leave_before_older_destructors
from disttest.host.process import awaitable_children, die_with_parent
from disttest.host.versions import too_old
from disttest.options.registry import PLUGIN_SWITCHES, RUN_OPTIONS
from disttest.options.values import spell_out
from disttest.plugin_manager import plugin_manager
from disttest.results.relay import hide_in_own_files, mask_terminal
from disttest.runtime.controller import early_skips, orders
from disttest.runtime.controller.ending import leave_session
from disttest.runtime.controller.expand import expand, expand_late, make_ids_unique, repeat_each
from disttest.runtime.controller.leaving_imports import report_of, staying
from disttest.runtime.controller.ordinary import be_an_ordinary_process, run_ordinary
from disttest.runtime.controller.pytest_reports import RERUN, masked_report
from disttest.runtime.controller.pytest_terminal import quieten, write_end
from disttest.runtime.controller.session import RUN, RunSession, inherit_results
from disttest.runtime.controller.session_options import ASKED, check_reports, has_asked, pytests_errors
from disttest.runtime.controller.wanted_worlds import declare_marks, has_to_do_with_worlds
from disttest.runtime.messages.leaving import LeaveNote
from disttest.runtime.rank.child import stay_off_cuda
from disttest.testing.world import World, current_scratch, current_world

T = TypeVar("T")
_LEAVING = pytest.StashKey[LeaveNote]()
_once_all_is_imported: list[Callable[[], None]] = []
# It imports more than half of disttest's modules, which a session without a world does not need.
_WORLDS = "disttest.runtime.controller.controller"
"""Module that runs worlds."""


def _note(config: pytest.Config, doing: str) -> None:
    """Record for the supervisor which step this process is in."""
    if (note := config.stash.get(_LEAVING, None)) is not None:
        note.doing(doing)


# --- options and configuration


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Register disttest's plugins with pytest, too: they may implement pytest's hooks."""
    for name, each in tuple(plugin_manager().all):
        if pluginmanager.is_blocked(
            name
        ):  # by pytest.ini or PYTEST_ADDOPTS, which the command line does not show
            plugin_manager().remove(name)
        else:
            pluginmanager.register(each, name)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option for each row of the registry, with ``--disttest-`` in front: plain names belong to others."""
    group = parser.getgroup("disttest", "distributed tests")
    internal = argparse.SUPPRESS
    # No secrets: the arguments of a process are visible to all users of the machine.
    for option in (option for option in RUN_OPTIONS if not option.secret):
        group.addoption(
            f"--disttest-{option.name}",
            dest=f"disttest_{option.field}",
            metavar=option.form,
            nargs="?" if option.type.bare else None,
            help=internal
            if option.no_flag or option.hidden
            else f"{option.description} [{option.variable}]".replace("%", "%%"),
        )
    group.addoption(orders.FLAG, dest="disttest_order", type=int, metavar="FD", help=internal)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Prepare the process before any conftest can import numpy or torch."""
    if (
        spelled := spell_out(args, PLUGIN_SWITCHES)
    ) != args:  # or ``--disttest-host FILE`` would lose its file
        args[:] = spelled
        # pytest has parsed the arguments before this hook, so they are parsed once more.
        early_config.known_args_namespace = parser.parse_known_args(args, copy.copy(early_config.option))
    note_original()
    # A test module that asks for GPUs at import would initialise CUDA, and this process could not be forked.
    stay_off_cuda()
    order = orders.order_of(early_config)
    leaving = order.leaving if isinstance(order, orders.ControllerOrder) else None
    early_config.stash[_LEAVING] = LeaveNote(leaving)
    if order.is_supervised and orders.collecting_order(early_config) is None:
        die_with_parent(order.shared.supervisor)
        inherit_results(early_config)
        # Objects that torch makes are permanent. Collecting garbage among them costs a sixth of the import time.
        gc.disable()
        _once_all_is_imported.append(_enable_gc)
    early_config.stash[ASKED] = has_asked(early_config)
    if early_config.stash[ASKED]:  # a session that is not ours looks as it does without the plugin
        plugin_manager().call("disttest_load_parts", config=early_config)
        # A conftest may replace functions that these modules bind when they are imported.
        importlib.import_module(_WORLDS)
        # With one compute thread, imports start no pools of threads, which forks would lack.
        _once_all_is_imported.append(import_single_threaded(order.shared.threads))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks and read the options; pytest's terminal reporter exists by then."""
    declare_marks(config, common=config.stash[ASKED])
    if orders.order_of(config).is_supervised and (words := too_old()):
        raise pytest.UsageError(words)
    run = config.stash[RUN] = RunSession(config)
    config.pluginmanager.register(run, "disttest-run")
    if run.work.columns and run.runs_tests and not config.option.collectonly:
        quieten(config, run.work.columns, lambda: run.recorder is not None)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Print where ranks run, unless the plugin is merely installed."""
    return _describe_run(config) if config.stash[ASKED] else []


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Print the same for a session whose tests alone ask for ranks."""
    is_ours = not config.stash[ASKED] and any(map(config.stash[RUN].needs_ranks, items))
    return _describe_run(config) if is_ours else []


def _describe_run(config: pytest.Config) -> list[str]:
    run = config.stash[RUN]
    slots = run.devices.size if run.devices else 0
    sizes = ",".join(map(str, run.options.world_sizes or run.host.default_sizes()))
    backends = ", ".join(run.options.backend or (run.host.default_backend(),))
    where = f"{slots} {run.host.device} slots, backend {backends}, world sizes {sizes}"
    return [f"disttest {__version__}: {where}", *(f"disttest: {message}" for message in run.said)]


# --- collection


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Restrict a process that collects for ranks to its own files among those that the command line names."""
    if isinstance(collector, pytest.Session) and collector.config.stash[RUN].rank_order is not None:

        def is_kept(path: Path) -> bool:
            return not pytest_ignore_collect(path, collector.config)

        # pytest does not call the hook below for these files, and has no public list of them (pytest 8.4 to 9.2). Other
        # arguments stay as they are: ids of files outside of the root directory are made from them.
        collector._initial_parts = [part for part in collector._initial_parts if is_kept(part.path)]  # noqa: SLF001
        collector._initialpaths = frozenset(filter(is_kept, collector._initialpaths))  # noqa: SLF001


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Restrict such a process to its own files among those of folders."""
    order = config.stash[RUN].rank_order
    if order is None or collection_path.is_dir() or str(collection_path) in order.modules:
        return None
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> None:
    """Declare the marks with common names before a module that may use them is imported."""
    if not parent.config.stash[ASKED] and has_to_do_with_worlds(module_path):
        declare_marks(parent.config, common=True)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Multiply each collected test by its worlds."""
    verb = "importing" if isinstance(collector, pytest.File) else "collecting"
    _note(collector.config, f"{verb} {collector.nodeid}")
    run = collector.config.stash[RUN]
    asked = orders.order_of(collector.config).is_supervised
    try:
        with run.hazard_watch.collecting(collector), staying() if asked else contextlib.nullcontext():
            # Worlds are made from finished items, because parametrizing functions does not see the marks of
            # parameters; and while a file is collected, so that `FILE::test[2xgloo]` can be selected.
            report: Any = yield
    except SystemExit as leaving:
        if not asked:  # without disttest's options, pytest decides
            raise
        return report_of(collector, leaving)  # type: ignore[return-value]
    if report.passed:
        try:
            report.result = list(expand(report.result, run.worlds_of))
        except UsageError as error:
            # The error belongs to this file alone; the tests of other files run.
            return pytest.CollectReport(collector.nodeid, "failed", str(error), [])  # type: ignore[return-value]
    return report  # type: ignore[no-any-return]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Add worlds for marks that other hooks have added, then select the tests of this run."""
    yield
    run = config.stash[RUN]
    # A fork that a module or a hook has made may return to this line, and would run all tests again.
    run.leave_if_copy()
    with pytests_errors():
        expand_late(items, run.worlds_of)
        given = {"config": config, "options": run.options, "host": run.host}
        plugin_manager().call("disttest_modify_tests", items=items, **given)
    repeat_each(items, run.options.repeat)
    if config.stash[ASKED] or any(map(run.needs_ranks, items)):
        # pytest allows two tests of one id, and a journal has one result for each id.
        make_ids_unique(items)
    run.keep_selected(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Import torch if ranks will need it, now that all test modules are imported, and open the journal."""
    config = session.config
    run = config.stash[RUN]
    if not config.option.collectonly and any(map(run.needs_ranks, session.items)):
        check_reports(config)
        from disttest.runtime.controller.preload import load_torch, load_what_tests_use

        load_torch()
        # Once here instead of in each rank: the first `assert_close` imports sympy (0.6 s of CPU), the first
        # optimizer step torch._dynamo (1.6 s).
        load_what_tests_use(config.rootpath)
    # the runners of a plan have their own torch
    elsewhere = config.option.collectonly and run.devices is None
    with pytests_errors():
        early_skips.skip_for_want_of_gpus(session.items, run.host.gpus)
        if not elsewhere:
            early_skips.check_backends(session.items, run.options)
    while _once_all_is_imported:
        _once_all_is_imported.pop()()
    if config.stash[RUN].runs_tests:
        with _journal_is_written():
            config.stash[RUN].accept_tests(session.items)


def _enable_gc() -> None:
    """Enable garbage collection again."""
    # Objects made meanwhile move to the oldest generation. Otherwise the next allocation would start a collection of
    # all of them.
    if not is_frozen():  # a command that was forked with torch imported has frozen it already
        freeze()
        gc.unfreeze()
    gc.enable()


# --- running


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Mask values in pytest's own output."""
    mask_terminal(session.config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Mask values before any other plugin reads the report."""
    report: Any = yield
    return masked_report(item.config, report)  # type: ignore[return-value]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run worlds first, while this process can be forked; then the ordinary tests, by pytest's own loop."""
    with _journal_is_written():
        return _run_tests(session)


def _run_tests(session: pytest.Session) -> bool | None:
    # Ordinary tests may start threads and touch CUDA in this process, after which forking it is unsafe.
    run = session.config.stash[RUN]
    run.leave_if_copy()
    # A rank and a fork source never return from their branch.
    match run.rank_order:
        case orders.RankOrder() as order:
            from disttest.runtime.rank.rank import run_as_rank

            run_as_rank(session, order.spec, order.channel_fd, run.errors)
        case orders.ForkSourceOrder() as order:
            from disttest.runtime.controller.fork_sources import serve_collected

            serve_collected(session, order, run.hazard_watch.judge(on_gpus=run.host.device != "cpu"))
    if plugin_manager().call("disttest_run_session", session=session):
        return True
    apart = run.recorder is not None and run.devices is not None
    if not run.runs_tests or session.config.option.collectonly or not apart:
        be_an_ordinary_process()
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        return None  # pytest's own loop reports collection errors
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None and reporter.verbosity <= 0:
        reporter.showfspath = False  # parallel worlds would print a file name for every dot
    from disttest.runtime.controller.controller import RunStopped, run_out_of_process
    from disttest.runtime.controller.session import DeadlinePassed

    was_frozen, note = is_frozen(), functools.partial(_note, session.config)
    try:
        # A conftest may ignore SIGCHLD or reap children in a handler: the exits of worlds would be lost.
        with awaitable_children():
            run_out_of_process(session, run, note)
        run_ordinary(session, run, note, thaw=not was_frozen)
    except DeadlinePassed:
        run.reason = f"the deadline of the run ({run.options.deadline:g} s) passed"
        leave_session(run.reason, ExitCode.DEADLINE)
    except RunStopped as stopped:
        run.stop(stopped.stop.reason)
        leave_session(run.reason, stopped.stop.exit_code)
    return True


@contextlib.contextmanager
def _journal_is_written() -> Iterator[None]:
    """End the run with one line if the journal cannot be written: its results would be lost."""
    try:
        yield
    except JournalError as error:
        leave_session(str(error), error.exit_code)


@pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_sessionfinish")
def pytest_sessionfinish_begins(session: pytest.Session) -> Iterator[None]:
    """Note where the process is: a conftest or a plugin may end it from its own hook."""
    _note(session.config, "running pytest_sessionfinish of a conftest or a plugin")
    yield
    _note(session.config, "running pytest_unconfigure of a conftest or a plugin")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Close the journal and collect garbage one last time."""
    run = session.config.stash.get(RUN, None)
    if run is not None:
        # A hook of a conftest or another plugin may have replaced the status that this hook was called with.
        run.close(session, int(session.exitstatus))
    if orders.order_of(session.config).is_supervised:
        # pytest is about to collect garbage several times, to find errors in objects that tests have left. Once finds
        # all of them among torch's objects: https://github.com/pytest-dev/pytest/pull/12958. The interpreter's last
        # collections, for which the command waits, are then short as well.
        gc.collect()
        freeze()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Mask values in files that pytest has written, and shorten the end of the process."""
    hide_in_own_files(config)
    if orders.order_of(config).is_supervised:
        run = config.stash.get(RUN, None)
        if (note := config.stash.get(_LEAVING, None)) is not None:
            note.leaving(run.exit_blockers.describe() if run is not None else "a plugin")
        if run is not None and run.pairs and not run.ordinary:
            leave_before_older_destructors()  # libraries were imported in this process but not used


# --- fixtures


@pytest.fixture
def world() -> World:
    """The world that this test runs in, with its process group initialised: rank, size, device, backend, group."""
    return _or_fail(current_world)


@pytest.fixture
def world_tmp_path() -> Path:
    """A directory that all ranks of the test share; ``tmp_path`` differs between ranks."""
    return _or_fail(current_scratch)


def _or_fail(provide: Callable[[], T]) -> T:
    try:
        return provide()
    except LookupError as error:
        pytest.fail(str(error), pytrace=False)


def pytest_report_teststatus(report: Any) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Show an attempt that is retried as RERUN."""
    is_tried_again = getattr(report, "outcome", None) == RERUN
    return (RERUN, "R", ("RERUN", {"yellow": True})) if is_tried_again else None


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """List flaky tests, and tests that fail here but would pass under torch's own harness."""
    run = config.stash.get(RUN, None)
    if run is not None and run.recorder is not None:
        write_end(terminalreporter, run.recorder, without_worlds=run.without_worlds)
