"""The guard of a run: starts pytest as a child, outlives it whatever happens, and writes the reports.

Runs in the command's process, which imports neither torch nor a test, so nothing that a test does can
take the reports away.
"""

from __future__ import annotations

import contextlib
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
from disttest.masking import masker
from disttest.model import Cause, Frozen, Invocation
from disttest.planning.options import OPTIONS, RunOptions
from disttest.planning.plan import Plan
from disttest.planning.targets import Targets, suites_dir
from disttest.reports.write import load_reporters
from disttest.results.events import CollectionFailed, Event, Noted, RunFinished, RunStarted
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, Journal
from disttest.running.relay import REMOVED, Relay, hide_what_was_learned
from disttest.running.sweep import Sweep

CANCEL_LIMIT_S = 3.5
"""How long pytest may take to stop in an orderly way; GitHub kills 7.5 s after its first signal."""
DEADLINE_MARGIN_S = 5.0
"""The controller keeps the deadline itself; only if it is stuck does the guard step in, this much later."""
_PUMP_S = 0.05
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
    plan: Plan | None = None,
    shard: int = 0,
) -> RunResult:
    """Run pytest to its end, or end it; nothing of it is left when this returns.

    Args:
        argv: the child's command line.
        options: only the deadline is read here.
        results: the claimed results directory.
        invocation: what the user asked, for the record.
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
            invocation=invocation,
        )
    )
    adopt_orphans()
    sweep = Sweep()
    relay = Relay() if masker.active else None
    child = _start(argv, relay)
    load_reporters()  # while the child imports torch
    ending = _watch(child, wakeup, options, relay)
    kill_descendants()
    if relay is not None:
        relay.finish()
    _close_journal(journal, ending, sweep)
    hide_what_was_learned(results)
    run = fold(journal.events())
    journal.close()
    return run


def _start(argv: Sequence[str], relay: Relay | None) -> Child:
    fds = [masker.ledger] if masker.ledger >= 0 else []
    argv = [*argv, *(f"--disttest-ledger={fd}" for fd in fds)]
    if relay is None:
        return spawn_child(argv, new_session=True, pass_fds=fds)
    child = spawn_child(
        argv, new_session=True, pass_fds=fds, stdout=relay.writer, extra_env=relay.environment()
    )
    relay.hand_over()
    return child


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


def _watch(child: Child, wakeup: int, options: RunOptions, relay: Relay | None) -> Ending:
    limit_s = time.monotonic() + options.deadline + DEADLINE_MARGIN_S if options.deadline else None
    poller = select.poll()
    poller.register(child, select.POLLIN)
    poller.register(wakeup, select.POLLIN)
    if relay is not None:
        poller.register(relay, select.POLLIN)
    while True:
        if relay is not None and not relay.ended and relay.pump():
            poller.unregister(relay)
        if (ended := child.poll()) is not None:
            return Ending(exit=ended)
        if limit_s is not None and time.monotonic() >= limit_s:
            return Ending(exit=_end(child, relay), overdue=True)
        pause_ms = None if limit_s is None else max(0.0, limit_s - time.monotonic()) * 1000
        poller.poll(pause_ms)
        if (signum := _received(wakeup)) is not None:
            return Ending(exit=_end(child, relay), signal=signum)


def _received(wakeup: int) -> int | None:
    try:
        numbers = os.read(wakeup, 64)
    except BlockingIOError:
        return None
    return next((number for number in numbers if number in _CANCELLING), None)


def _end(child: Child, relay: Relay | None) -> Exit:
    """Ask pytest to stop, then make it; it may have much to say meanwhile."""
    child.signal(signal.SIGINT)
    deadline = time.monotonic() + CANCEL_LIMIT_S
    while relay is not None and child.poll() is None and time.monotonic() < deadline:
        child.wait(_PUMP_S)
        relay.pump()
    if child.wait(deadline - time.monotonic()) is None:
        end_all([child], term_grace_s=0.2)
    return child.poll() or Exit(signal=signal.SIGKILL)


def _close_journal(journal: Journal, ending: Ending, sweep: Sweep) -> None:
    """Say how the run ended, in the last line of the journal; a child's own last word is checked, not trusted."""
    if journal.restore():
        _append(journal, Noted(at_s=journal.now(), message=REMOVED))
    run = fold(journal.events())
    for message, nodeid in sweep.clean(run):
        _append(journal, Noted(at_s=journal.now(), message=message, nodeid=nodeid))
    finished = next((e for e in journal.events() if isinstance(e, RunFinished)), None)
    code, reason = _conclude(run, ending, finished=finished is not None)
    by_itself = finished is None and not ending.signal and not ending.overdue
    if by_itself and code not in (ExitCode.USAGE, ExitCode.INFRASTRUCTURE):
        _append(journal, CollectionFailed(at_s=journal.now(), nodeid="pytest", message=reason))
    _append(journal, RunFinished(at_s=journal.now(), exit_code=code, reason=reason))


def _append(journal: Journal, event: Event) -> None:
    """Append; what the disk has no room for is part of the reports all the same."""
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
        return ExitCode.INFRASTRUCTURE, "the results directory can not be written any more (see above)"
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
    return ExitCode.FAILED if run.bad or (run.flaky_fails and run.flaky) else code
