"""The supervisor of a run: starts pytest as a child, outlives it in any case, and writes the reports.

It runs in the command's process, which imports neither torch nor a test, so no test can prevent the reports.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import msgspec

import disttest
from disttest.clock import monotonic
from disttest.errors import ExitCode, JournalError, PluginError
from disttest.host.compute_threads import asked_threads, single_threaded
from disttest.host.descendants import children_of, kill_descendants
from disttest.host.event_loop import NotedSignals, wait_any
from disttest.host.oom import Shortage
from disttest.host.process import Child, Exit, adopt_orphans, end_all, spawn_child
from disttest.limits import DEADLINE_MARGIN_S, PYTEST_LEAVE_S, PYTEST_TERM_S, SUPERVISOR_CANCEL_S, TICK_S
from disttest.model import Frozen, Hardware, Invocation
from disttest.options.environment import hash_seed
from disttest.options.registry import RUN_OPTIONS
from disttest.options.run import RunOptions
from disttest.outgoing import outgoing
from disttest.planning.targets import Targets, suites_dir
from disttest.plugin_manager import plugin_manager
from disttest.reports.views import RunView
from disttest.reports.write import load_reporters
from disttest.results.conclusion import Conclusion, Facts, Process, conclude, facts_of, join_exit_codes
from disttest.results.directory import ResultsDirectory
from disttest.results.events import AnyEvent, CollectionFailed, Noted, RunFinished, RunStarted, TestFinished
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, Journal
from disttest.results.relay import hide_what_was_learned
from disttest.runtime.controller.orders import ControllerOrder, given_order
from disttest.runtime.controller.run_watch import RunWatch, clean_up, watch_run
from disttest.runtime.messages.leaving import LeaveBoard
from disttest.runtime.supervisor.follow import Outputs, Watch
from disttest.runtime.supervisor.reaper import Reaper

_CANCELLING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class PytestProcess(Frozen):
    """One pytest process of a run; they run one after another."""

    name: str = ""
    """Options that distinguish it from the others."""
    arguments: tuple[str, ...] = ()
    """Further arguments for the process."""


class PytestStart(Frozen):
    """Start of a pytest process."""

    argv: tuple[str, ...]
    """Its command line."""
    extra_env: dict[str, str]
    """Variables in addition to those of this process."""
    pass_fds: tuple[int, ...]
    """Descriptors that it inherits, under the same numbers."""
    outputs: Outputs


class Ending(Frozen):
    """Exit status of the child, and the actions that ended it."""

    exit: Exit
    signal: int | None = None
    """Signal that cancelled the run."""
    overdue: bool = False
    """Whether it missed the deadline."""
    in_order: bool = False
    """Whether the exit code is pytest's own; otherwise a test, a plugin or a signal ended the process."""
    doing: str = ""
    """Its last activity: ``importing test_x.py``."""
    kept: bool = False
    """Whether pytest had finished and the process had to be ended because something kept it alive."""


class _End(NamedTuple):
    """Result of one pytest process."""

    conclusion: Conclusion
    no_test: str = ""
    """Reason why it ran no test, if no other message states it."""
    note: str = ""
    """Further note about it."""

    @property
    def is_early(self) -> bool:
        """Whether the run ends with it, even if other processes were to follow."""
        return bool(self.conclusion.reason) and self.conclusion.exit_code != ExitCode.NOTHING_COLLECTED


def plugin_arguments() -> list[str]:
    """Return the arguments that load the plugin: its installed name, otherwise its module."""
    # pytest loads entry points itself. It refuses a module that is registered under a second name.
    installed = {entry.name for entry in metadata.entry_points(group="pytest11")}
    return ["-p", "disttest" if "disttest" in installed else "disttest.plugin"]


def suite_arguments() -> list[str]:
    """Return the arguments that select the settings of the bundled suites."""
    return ["-c", str(suites_dir() / "pytest.ini"), f"--rootdir={suites_dir()}"]


def pytest_command(targets: Targets, flags: dict[str, str], extra: Sequence[str]) -> list[str]:
    """Build the command line of a child, to which its order is added when it starts."""
    argv = [sys.executable, "-m", "pytest", *plugin_arguments()]
    if targets.bundled:
        argv += suite_arguments()
    argv += [
        # `ps` shows a command line to all users of the machine, so secret options are left out.
        f"--disttest-{option.name}={flags[option.field]}"
        for option in RUN_OPTIONS
        if flags.get(option.field) and not option.secret
    ]
    # A file that cannot be collected makes the exit code 2, and hides no result of the other files.
    return [*argv, "--continue-on-collection-errors", *targets.arguments, *extra]


def run_supervised(
    argv: Sequence[str],
    options: RunOptions,
    directory: ResultsDirectory,
    *,
    invocation: Invocation,
    hardware: Hardware,
    order: ControllerOrder,
    view: RunView | None = None,
) -> RunResult:
    """Run pytest until it ends or must be ended; none of its processes is left on return.

    Args:
        argv: command line of the child.
        options: options of the run; plugins may split it into several pytest processes.
        directory: claimed results directory; it may have moved on return.
        invocation: the user's request, for the record.
        hardware: the machine, for the record.
        order: settings of the command for the child; the descriptors are added here.
        view: shows the run; without one, pytest owns the terminal.
    """
    hold_signals()
    journal = Journal(directory.path / FILE_NAME)
    # The record of the command: the reports need it even if pytest ends before its first hook.
    journal.append(
        RunStarted(
            at_s=journal.now(),
            run_id="",
            argv=tuple(sys.argv[1:]),
            root=str(Path.cwd()),
            hardware=hardware,
            slots=0,
            disttest=disttest.__version__,
            plan_id=order.part.plan_id,
            shard=order.part.shard,
            invocation=invocation,
        )
    )
    # A rank whose world and controller were killed becomes a child of this process instead of init's, and is
    # found at the end.
    adopt_orphans()
    processes = plugin_manager().call("disttest_processes_of_run", options=options) or (PytestProcess(),)
    # Before the first process starts: both compare the end of the run with this moment.
    watches, shortage = watch_run(lambda: directory.home.now()), Shortage()
    watch = Watch(journal.path, view, journal.now)
    until_s = math.inf
    if options.deadline:
        until_s = monotonic() + options.deadline
        order = msgspec.structs.replace(order, until_s=until_s)
    ends: list[_End] = []
    # A set-up script may have left servers running for all pytest processes.
    services = tuple(children_of())
    try:
        given = (order, watch, directory, journal, options.seed, until_s, services)
        for process in processes:
            ends.append(_run_one([*argv, *process.arguments], *given))
            if ends[-1].is_early:
                break
    finally:
        watch.close()
        kill_descendants()
    for process in processes[len(ends) :]:
        _append(journal, watch, Noted(at_s=journal.now(), message=f"not run with {process.name}: see above"))
    for message in shortage.notes():
        _append(journal, watch, Noted(at_s=journal.now(), message=message))
    _close_journal(journal, ends, watch, watches, directory)
    hide_what_was_learned(directory.path)
    # Events folded on the way may contain secrets that were learned later.
    run = fold(journal.events()) if outgoing.active else watch.folding.result()
    journal.close()
    return run


def _run_one(
    argv: Sequence[str],
    order: ControllerOrder,
    watch: Watch,
    directory: ResultsDirectory,
    journal: Journal,
    seed: int,
    until_s: float,
    services: Sequence[int],
) -> _End:
    """Run one pytest process until it ends or must be ended; none of its descendants is left on return."""
    board = LeaveBoard()
    reaper = Reaper()
    # An earlier pytest process of this run may have reported its end in the same journal.
    before = watch.folding.finished
    try:
        child = _start(argv, order, watch, board, reaper, directory, journal, seed)
        reaper.start()
        # Load them while the child imports torch.
        load_reporters()
        ending = _Supervisor(child, hold_signals(), watch, board).wait(until_s + DEADLINE_MARGIN_S)
        ending = msgspec.structs.replace(ending, in_order=board.in_order, doing=board.doing)
        # The reaper must outlive this process: it ends the remaining processes if this one is killed.
        kill_descendants(spare=reaper.pids, spare_trees=services)
    finally:
        watch.child_ended()
        board.close()
        reaper.dismiss()
    if watch.folding.finished is before and not (ending.signal or ending.overdue):
        # The tests behind it are not run: a new process for them would have to collect everything again.
        ending = _blame_test(journal, watch, ending)
    return _end_of(watch.folding.result(), ending, finished=watch.folding.finished is not before)


def _blame_test(journal: Journal, watch: Watch, ending: Ending) -> Ending:
    """If an ordinary test ended the process, record the failure of the test and the early end of the run."""
    now_s, how = journal.now(), str(ending.exit)
    results = watch.folding.crash(how, at_s=now_s)
    if not results:
        return ending
    reason = f"{results[0].nodeid} ended the pytest process with {how}"
    with contextlib.suppress(JournalError):
        for result in results:
            journal.append(TestFinished(at_s=now_s, result=result))
        journal.append(RunFinished(at_s=now_s, exit_code=ExitCode.FAILED, reason=reason))
    watch.look()
    return msgspec.structs.replace(ending, exit=Exit(code=ExitCode.FAILED))


def _start(
    argv: Sequence[str],
    order: ControllerOrder,
    watch: Watch,
    board: LeaveBoard,
    reaper: Reaper,
    directory: ResultsDirectory,
    journal: Journal,
    seed: int,
) -> Child:
    # Descriptors, not paths: a path may lead elsewhere by the time that torch is imported.
    fds = {"leaving": board.fd, "claim": directory.fileno(), "journal": journal.fileno()}
    shared = msgspec.structs.replace(order.shared, supervisor=os.getpid(), threads=asked_threads())
    order = msgspec.structs.replace(order, shared=shared, **fds)
    # Plugins that load before disttest's may import numpy or torch, so the limits are set in the environment.
    # Without one hash seed, parameters from a set would differ between processes that collect for themselves.
    extra_env = hash_seed(seed) | reaper.environment | single_threaded()
    with given_order(order, *fds.values()) as (argument, descriptors):
        start = PytestStart(
            argv=(*argv, argument),
            extra_env=extra_env,
            pass_fds=tuple(descriptors),
            outputs=watch.outputs(),
        )
        child: Child | None = plugin_manager().call("disttest_start_pytest", start=start)
        return child or spawn_child(
            start.argv,
            new_session=True,
            pass_fds=start.pass_fds,
            extra_env=start.extra_env,
            keep_stdin=True,
            **start.outputs,
        )


@functools.cache
def hold_signals() -> NotedSignals:
    """Hold the signals that cancel a run until this process ends.

    A signal before the first event or between the reports would leave half of the results.
    """
    return NotedSignals(_CANCELLING)


def cancelled_late() -> int | None:
    """Return a signal that arrived after the run had ended, while reports were written; None without one."""
    return hold_signals().first()


class _Supervisor:
    """Waits for the child, for signals, and for the child's output."""

    def __init__(self, child: Child, signals: NotedSignals, watch: Watch, board: LeaveBoard) -> None:
        self._child = child
        self._board = board
        self._leave_until_s = math.inf
        self._signals = signals
        self._watch = watch
        # With a copy of their writing ends here, the outputs of the child would never end.
        watch.child_started()

    def wait(self, limit_s: float) -> Ending:
        """Wait until the child ends; end it at ``limit_s`` on the monotonic clock."""
        while True:
            self._watch.look()
            if (ended := self._child.poll()) is not None:
                return Ending(exit=ended)
            # After the check for the end: a child that ended in time is not reported as overdue because this
            # process was late.
            if monotonic() >= limit_s:
                return Ending(exit=self._end(), overdue=True)
            if self._is_kept():
                return self._end_kept()
            wait_any(self._child, self._signals, *self._watch.readers(), timeout_s=TICK_S, until_s=limit_s)
            if (signum := self._signals.first()) is not None:
                return Ending(exit=self._end(), signal=signum)

    def _is_kept(self) -> bool:
        """Whether pytest has finished and its process is still alive after the limit."""
        # The time counts from pytest's last hook, because the reports of other plugins may take longer than
        # the limit.
        if math.isinf(self._leave_until_s) and self._board.is_leaving:
            self._leave_until_s = monotonic() + PYTEST_LEAVE_S
        return monotonic() >= self._leave_until_s

    def _end_kept(self) -> Ending:
        """End the process; pytest's own exit code counts, not that of the end."""
        ended, finished = self._end(), self._watch.folding.finished
        return Ending(exit=ended if finished is None else Exit(code=finished.exit_code), kept=True)

    def _end(self) -> Exit:
        """Ask pytest to stop, then kill it."""
        # pytest ends the session in order on SIGINT: fixtures are torn down and results written.
        self._child.signal(signal.SIGINT)
        limit_s = monotonic() + SUPERVISOR_CANCEL_S
        while self._child.poll() is None and monotonic() < limit_s:
            self._watch.look()
            wait_any(self._child, self._signals, *self._watch.readers(), timeout_s=TICK_S, until_s=limit_s)
            # Read further signals without effect: the child is being ended already.
            self._signals.first()
        # pytest cannot handle SIGINT inside a C call that never returns to the interpreter.
        end_all([self._child], term_grace_s=PYTEST_TERM_S)
        return self._child.poll() or Exit(signal=signal.SIGKILL)


def _close_journal(
    journal: Journal,
    ends: Sequence[_End],
    watch: Watch,
    watches: Mapping[str, RunWatch],
    directory: ResultsDirectory,
) -> None:
    """Write the end of the run as the last line of the journal."""
    # The child died in the middle of a write.
    if watch.cut_short:
        journal.end_line()
    if restored := directory.restore(journal):
        _append(journal, watch, Noted(at_s=journal.now(), message=restored))
    run = watch.folding.result()
    try:
        for nodeid, message in clean_up(watches, lambda: run.attempts):
            _append(journal, watch, Noted(at_s=journal.now(), message=message, nodeid=nodeid))
    except PluginError as error:
        # A failed test decides the exit code, and its reason: a note has the error in any case.
        _append(journal, watch, Noted(at_s=journal.now(), message=str(error)))
        ends = [*ends, _End(Conclusion(error.exit_code, str(error)))]
    if watch.trouble:
        message = f"the live view of the run was stopped: {watch.trouble}"
        _append(journal, watch, Noted(at_s=journal.now(), message=message))
    for message in (end.note for end in ends if end.note):
        _append(journal, watch, Noted(at_s=journal.now(), message=message))
    for message in (end.no_test for end in ends if end.no_test):
        _append(journal, watch, CollectionFailed(at_s=journal.now(), nodeid="pytest", message=message))
    code, reason = _join(ends)
    _append(journal, watch, RunFinished(at_s=journal.now(), exit_code=code, reason=reason))


def _end_of(run: RunResult, ending: Ending, *, finished: bool) -> _End:
    """Conclude one pytest process; its own report is checked, not trusted.

    Args:
        run: result of the run so far.
        ending: end of the process.
        finished: whether its own report is in the journal.
    """
    code, reason = conclusion = conclude(_facts(run, ending, finished=finished))
    note = _report_exit_blockers(ending)
    by_itself = not finished and not ending.signal and not ending.overdue
    if not by_itself or code in (ExitCode.USAGE, ExitCode.INFRASTRUCTURE):
        return _End(conclusion, note=note)
    return _End(conclusion, reason or f"pytest ended with {ending.exit} before it had a test")


def _report_exit_blockers(ending: Ending) -> str:
    if not ending.kept:
        return ""
    return (
        f"{ending.doing} kept the pytest process alive after all tests; disttest ended it after {PYTEST_LEAVE_S:g} s. "
        "End it in the test, or make it a daemon"
    )


def _join(ends: Sequence[_End]) -> Conclusion:
    """Conclude the run: the gravest of its processes decides."""
    codes = [end.conclusion.exit_code for end in ends]
    code = join_exit_codes(codes, something_ran=any(code != ExitCode.NOTHING_COLLECTED for code in codes))
    reasons = [end.conclusion.reason for end in ends if end.conclusion.exit_code == code]
    return Conclusion(code, "; ".join(dict.fromkeys(filter(None, reasons))))


def _append(journal: Journal, watch: Watch, event: AnyEvent) -> None:
    """Append an event; on a full disk it is part of the reports all the same."""
    watch.handle(event)
    with contextlib.suppress(JournalError):
        journal.append(event)


def _facts(run: RunResult, ending: Ending, *, finished: bool) -> Facts:
    return msgspec.structs.replace(
        facts_of(run),
        signal=ending.signal or 0,
        deadline="the deadline of the run passed" if ending.overdue else "",
        process=Process(
            exit_code=ending.exit.code,
            ended=str(ending.exit),
            has_reported=finished,
            broken_off=_broken_off(run, ending, finished=finished),
        ),
        reason=run.reason if finished else "",
        # pytest reports an empty collection with its exit code.
        empty=False,
    )


def _broken_off(run: RunResult, ending: Ending, *, finished: bool) -> str:
    """Return the reason why the exit code is not pytest's own; empty if it is, or repeats pytest's last report."""
    if ending.in_order or (finished and ending.exit.code == run.exit_code):
        return ""
    what = f"the pytest process ended with {ending.exit}"
    return (
        f"{what} when all was done" if finished else f"{what} in the middle of the run, while {ending.doing}"
    )
