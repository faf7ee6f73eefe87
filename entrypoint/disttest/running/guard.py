"""The guard of a run: starts pytest as a child, outlives it whatever happens, and writes the reports.

Runs in the command's process, which imports neither torch nor a test, so nothing that a test does can
take the reports away.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import disttest
from disttest.errors import ExitCode
from disttest.host.devices import detect_machine
from disttest.host.process import (
    Child,
    Exit,
    adopt_orphans,
    end_all,
    kill_descendants,
    signal_name,
    spawn_child,
)
from disttest.model import Cause, Frozen
from disttest.planning.options import OPTIONS, RunOptions
from disttest.planning.plan import Plan
from disttest.planning.targets import Targets, suites_dir
from disttest.reports.write import load_reporters
from disttest.results.events import CollectionFailed, Noted, RunFinished, RunStarted
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, Journal, read_events
from disttest.running.sweep import Sweep

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
        f"--disttest-{option.name}={flags[option.field]}" for option in OPTIONS if flags.get(option.field)
    ]
    return [
        *argv,
        f"--disttest-guarded={os.getpid()}",
        "--continue-on-collection-errors",
        *targets.arguments,
        *extra,
    ]


def run_guarded(
    argv: Sequence[str], options: RunOptions, results: Path, *, plan: Plan | None = None, shard: int = 0
) -> RunResult:
    """Run pytest to its end, or end it; nothing of it is left when this returns.

    Args:
        argv: the child's command line.
        options: only the deadline is read here.
        results: the claimed results directory.
        plan: the plan that this run is a shard of.
        shard: which one; without a plan it means nothing.
    """
    wakeup = hold_signals()
    journal = Journal(results / FILE_NAME)
    journal.append(
        RunStarted(
            at_s=journal.now(),
            run_id="",
            argv=tuple(sys.argv[1:]),
            root=str(Path.cwd()),
            hardware=detect_machine().hardware(),
            slots=0,
            disttest=disttest.__version__,
            plan_id=plan.plan_id if plan else "",
            shard=shard if plan else None,
        )
    )
    adopt_orphans()
    sweep = Sweep()
    child = spawn_child(argv, new_session=True)
    load_reporters()  # while the child imports torch
    ending = _watch(child, wakeup, options)
    kill_descendants()
    _close_journal(journal, ending, results, sweep)
    return fold(read_events(results / FILE_NAME))


def hold_signals() -> int:
    """From here to the end of this process the signals that cancel a run are only noted; returns their pipe.

    They arrive as bytes, so that one loop waits for everything. They are held until the process ends, because
    one that comes before the first event or between the reports would leave half of something behind.
    """
    if not _wakeup:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for signum in _CANCELLING:
            signal.signal(signum, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        _wakeup.append(reader)
    return _wakeup[0]


def cancelled_late() -> int | None:
    """The number of a signal that came after the run had ended, while its reports were written."""
    return _received(hold_signals())


_wakeup: list[int] = []
"""The pipe of signals of this process, once it is made."""


def _watch(child: Child, wakeup: int, options: RunOptions) -> Ending:
    limit_s = time.monotonic() + options.deadline + DEADLINE_MARGIN_S if options.deadline else None
    poller = select.poll()
    poller.register(child, select.POLLIN)
    poller.register(wakeup, select.POLLIN)
    while True:
        if (ended := child.poll()) is not None:
            return Ending(exit=ended)
        if limit_s is not None and time.monotonic() >= limit_s:
            return Ending(exit=_end(child), overdue=True)
        pause_ms = None if limit_s is None else max(0.0, limit_s - time.monotonic()) * 1000
        poller.poll(pause_ms)
        if (signum := _received(wakeup)) is not None:
            return Ending(exit=_end(child), signal=signum)


def _received(wakeup: int) -> int | None:
    try:
        numbers = os.read(wakeup, 64)
    except BlockingIOError:
        return None
    return next((number for number in numbers if number in _CANCELLING), None)


def _end(child: Child) -> Exit:
    """Ask pytest to stop, then make it."""
    child.signal(signal.SIGINT)
    if child.wait(CANCEL_LIMIT_S) is None:
        end_all([child], term_grace_s=0.2)
    return child.poll() or Exit(signal=signal.SIGKILL)


def _close_journal(journal: Journal, ending: Ending, results: Path, sweep: Sweep) -> None:
    """Say how the run ended, in the last line of the journal; a child's own last word is checked, not trusted."""
    run = fold(read_events(results / FILE_NAME))
    for message, nodeid in sweep.clean(run):
        journal.append(Noted(at_s=journal.now(), message=message, nodeid=nodeid))
    finished = next((e for e in read_events(results / FILE_NAME) if isinstance(e, RunFinished)), None)
    code, reason = _conclude(run, ending, finished=finished is not None)
    if finished is None and not ending.signal and not ending.overdue and ending.exit.code != ExitCode.USAGE:
        journal.append(CollectionFailed(at_s=journal.now(), nodeid="pytest", message=reason))
    journal.append(RunFinished(at_s=journal.now(), exit_code=code, reason=reason))
    journal.close()


def _conclude(run: RunResult, ending: Ending, *, finished: bool) -> tuple[int, str]:
    """Exit code and reason of the run."""
    if ending.signal is not None:
        return 128 + ending.signal, f"the run was cancelled by {signal_name(ending.signal)}"
    if ending.overdue or ending.exit.code == ExitCode.DEADLINE:
        return ExitCode.DEADLINE, "the deadline of the run passed"
    code = ending.exit.code
    if not finished and code == ExitCode.USAGE:
        return ExitCode.USAGE, "pytest could not be started as asked"
    if not finished and code != ExitCode.NOTHING_COLLECTED:
        return ExitCode.INTERNAL, f"the pytest process ended with {ending.exit} in the middle of the run"
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
    return ExitCode.FAILED if run.bad else code
