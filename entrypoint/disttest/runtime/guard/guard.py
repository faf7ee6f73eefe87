"""The guard of a run: starts pytest as a child, outlives it whatever happens, and writes the reports.

Runs in the command's process, which imports neither torch nor a test, so nothing that a test does can
take the reports away.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import disttest
from disttest.errors import ExitCode, JournalError
from disttest.host.process import (
    Child,
    Exit,
    adopt_orphans,
    end_all,
    kill_descendants,
    signal_name,
    spawn_child,
)
from disttest.host.signals import NotedSignals
from disttest.masking import masker
from disttest.model import Cause, Frozen, Hardware, Invocation
from disttest.planning.options import OPTIONS, RunOptions
from disttest.planning.plan import Plan
from disttest.planning.targets import Targets, suites_dir
from disttest.reports.views import View
from disttest.reports.write import load_reporters
from disttest.results.events import AnyEvent, CollectionFailed, Noted, RunFinished, RunStarted
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, Journal
from disttest.running.relay import REMOVED, hide_what_was_learned
from disttest.running.sweep import Sweep
from disttest.running.watch import TICK_S, Watch

CANCEL_LIMIT_S = 3.5
"""How long pytest may take to stop in an orderly way; GitHub kills 7.5 s after its first signal."""
DEADLINE_MARGIN_S = 5.0
"""The controller keeps the deadline itself; only if it is stuck does the guard step in, this much later."""
_CANCELLING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ending(Frozen):
    """How the child ended, and what we had to do with it."""

    exit: Exit
    signal: int | None = None
    """The signal that cancelled the run."""
    overdue: bool = False
    """It did not keep the deadline."""


def plugin_arguments() -> list[str]:
    """How pytest is told to load the plugin: by the name it is installed under, else by its module."""
    installed = {entry.name for entry in metadata.entry_points(group="pytest11")}
    return ["-p", "disttest" if "disttest" in installed else "disttest.plugin"]


def pytest_command(targets: Targets, flags: dict[str, str], extra: Sequence[str]) -> list[str]:
    """The command line of the child."""
    argv = [sys.executable, "-m", "pytest", *plugin_arguments()]
    if targets.bundled:
        argv += ["-c", str(suites_dir() / "pytest.ini"), f"--rootdir={suites_dir()}"]
    argv += [
        f"--disttest-{option.name}={flags[option.field]}"
        for option in OPTIONS
        if flags.get(option.field) and not option.secret
    ]
    return [
        *argv,
        f"--disttest-guarded={os.getpid()}",
        "--continue-on-collection-errors",
        *targets.arguments,
        *extra,
    ]


def run_guarded(
    argv: Sequence[str],
    options: RunOptions,
    results: Path,
    *,
    invocation: Invocation,
    hardware: Hardware,
    plan: Plan | None = None,
    shard: int = 0,
    view: View | None = None,
) -> RunResult:
    """Run pytest to its end, or end it; nothing of it is left when this returns.

    Args:
        argv: the child's command line.
        options: only the deadline is read here.
        results: the claimed results directory.
        invocation: what the user asked, for the record.
        hardware: the machine, for the record.
        plan: the plan that this run is a shard of.
        shard: which one; without a plan it means nothing.
        view: shows the run while it lasts; without one, the terminal is pytest's.
    """
    signals = hold_signals()
    journal = Journal(results / FILE_NAME)
    journal.append(
        RunStarted(
            at_s=journal.now(),
            run_id="",
            argv=tuple(sys.argv[1:]),
            root=str(Path.cwd()),
            hardware=hardware,
            slots=0,
            disttest=disttest.__version__,
            plan_id=plan.plan_id if plan else "",
            shard=shard if plan else None,
            invocation=invocation,
        )
    )
    adopt_orphans()
    sweep = Sweep()
    watch = Watch(journal.path, view, journal.now)
    try:
        child = _start(argv, watch)
        load_reporters()  # while the child imports torch
        ending = _Guard(child, signals, watch).stand(options)
        kill_descendants()
    finally:
        watch.close()
    _close_journal(journal, ending, watch, sweep)
    hide_what_was_learned(results)
    # What was learned to be hidden late stands in what was folded on the way.
    run = fold(journal.events()) if masker.active else watch.folding.result()
    journal.close()
    return run


def _start(argv: Sequence[str], watch: Watch) -> Child:
    fds = [masker.ledger] if masker.ledger >= 0 else []
    argv = [*argv, *(f"--disttest-ledger={fd}" for fd in fds)]
    return spawn_child(argv, new_session=True, pass_fds=fds, **watch.streams())


@functools.cache
def hold_signals() -> NotedSignals:
    """From here to the end of this process the signals that cancel a run are only noted.

    One that comes before the first event or between the reports would leave half of something behind.
    """
    return NotedSignals(_CANCELLING)


def cancelled_late() -> int | None:
    """The number of a signal that came after the run had ended, while its reports were written."""
    return hold_signals().first()


class _Guard:
    """Waits for the child, for signals, and for what the child prints."""

    def __init__(self, child: Child, signals: NotedSignals, watch: Watch) -> None:
        self._child = child
        self._signals = signals
        self._watch = watch
        self._poller = select.poll()
        self._poller.register(child, select.POLLIN)
        self._poller.register(signals, select.POLLIN)
        watch.child_started(self._poller)

    def stand(self, options: RunOptions) -> Ending:
        """Stay until the child has ended, or has been ended."""
        limit_s = time.monotonic() + options.deadline + DEADLINE_MARGIN_S if options.deadline else math.inf
        while True:
            self._watch.look(self._poller)
            if (ended := self._child.poll()) is not None:
                return Ending(exit=ended)
            if time.monotonic() >= limit_s:
                return Ending(exit=self._end(), overdue=True)
            self._pause(limit_s)
            if (signum := self._signals.first()) is not None:
                return Ending(exit=self._end(), signal=signum)

    def _pause(self, limit_s: float) -> None:
        self._poller.poll(min(TICK_S, max(0.0, limit_s - time.monotonic())) * 1000)

    def _end(self) -> Exit:
        """Ask pytest to stop, then make it."""
        self._child.signal(signal.SIGINT)
        limit_s = time.monotonic() + CANCEL_LIMIT_S
        while self._child.poll() is None and time.monotonic() < limit_s:
            self._watch.look(self._poller)
            self._pause(limit_s)
            self._signals.first()  # asked again: it ends already
        if self._child.poll() is None:
            end_all([self._child], term_grace_s=0.2)
        return self._child.poll() or Exit(signal=signal.SIGKILL)


def _close_journal(journal: Journal, ending: Ending, watch: Watch, sweep: Sweep) -> None:
    """Say how the run ended, in the last line of the journal; a child's own last word is checked, not trusted."""
    if watch.cut_short:
        journal.end_line()
    if journal.restore():
        _append(journal, watch, Noted(at_s=journal.now(), message=REMOVED))
    run, finished = watch.folding.result(), watch.folding.finished is not None
    for message, nodeid in sweep.clean(run):
        _append(journal, watch, Noted(at_s=journal.now(), message=message, nodeid=nodeid))
    code, reason = _conclude(run, ending, finished=finished)
    if watch.trouble:
        message = f"the view of the run was given up: {watch.trouble}"
        _append(journal, watch, Noted(at_s=journal.now(), message=message))
    by_itself = not finished and not ending.signal and not ending.overdue
    if by_itself and code not in (ExitCode.USAGE, ExitCode.INFRASTRUCTURE):
        _append(journal, watch, CollectionFailed(at_s=journal.now(), nodeid="pytest", message=reason))
    _append(journal, watch, RunFinished(at_s=journal.now(), exit_code=code, reason=reason))


def _append(journal: Journal, watch: Watch, event: AnyEvent) -> None:
    """Append; what the disk has no room for is part of the reports all the same."""
    watch.take(event)
    with contextlib.suppress(JournalError):
        journal.append(event)


def _conclude(run: RunResult, ending: Ending, *, finished: bool) -> tuple[int, str]:
    """Exit code and reason of the run."""
    if ending.signal is not None:
        return 128 + ending.signal, f"the run was cancelled by {signal_name(ending.signal)}"
    if ending.overdue or ending.exit.code == ExitCode.DEADLINE:
        return ExitCode.DEADLINE, "the deadline of the run passed"
    code = ending.exit.code
    if not finished and code == ExitCode.USAGE:
        return ExitCode.USAGE, "pytest could not be started as asked"
    if not finished and code == ExitCode.INFRASTRUCTURE:
        return (
            ExitCode.INFRASTRUCTURE,
            f"pytest gave up with {ending.exit}: results can not be kept, see above",
        )
    if not finished and code != ExitCode.NOTHING_COLLECTED:
        return ExitCode.INTERNAL, f"the pytest process ended with {ending.exit} in the middle of the run"
    if finished and code in (ExitCode.NOT_ENOUGH_DEVICES, ExitCode.INFRASTRUCTURE):
        return code, run.reason
    if code is None or code not in range(6):
        return ExitCode.INTERNAL, f"the pytest process ended with {ending.exit}"
    return _check(ExitCode(code), run), run.reason if finished else ""


def _check(code: ExitCode, run: RunResult) -> ExitCode:
    """The child's code against what the journal says; the worse one counts."""
    if code not in (ExitCode.PASSED, ExitCode.FAILED):
        return code
    if run.collection_errors:
        return ExitCode.INTERRUPTED
    if run.bad and all(test.final.cause is Cause.INFRASTRUCTURE for test in run.bad):
        return ExitCode.INFRASTRUCTURE
    return ExitCode.FAILED if run.bad or (run.flaky_fails and run.flaky) else code
