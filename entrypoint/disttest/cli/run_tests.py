"""``disttest run``: has a request executed by the core or a plugin, and reports the result."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from disttest.cli.progress_mode import choose_progress, runs_nothing
from disttest.cli.run_request import PreparedRun, RunRequest, read_request
from disttest.cli.setup_script import run_setup
from disttest.cli.words import warn, warn_by_plugins
from disttest.host.event_loop import NotedSignals
from disttest.limits import DEADLINE_MARGIN_S
from disttest.model import Hardware, Invocation
from disttest.options.environment import ci_workspace, environment, remove_from_environment
from disttest.options.registry import KEEP_RESULTS
from disttest.options.run import RunOptions, filled, resolve_options
from disttest.outgoing import outgoing
from disttest.output import drain_streams
from disttest.planning.targets import Targets, resolve_targets
from disttest.plugin_manager import blaming, plugin_manager
from disttest.results.conclusion import Facts, conclude
from disttest.results.directory import ResultsDirectory, claim, claim_default, remove_old
from disttest.results.fold import RunResult
from disttest.results.journal import FILE_NAME, record_end
from disttest.results.repeat import variables_of_classes
from disttest.runtime.controller.devices import make_devices
from disttest.runtime.controller.orders import ControllerOrder, Shared
from disttest.runtime.supervisor.listing import ask_pytest
from disttest.runtime.supervisor.run_supervisor import (
    cancelled_late,
    hold_signals,
    pytest_command,
    run_supervised,
)
from disttest.safe_open import read_input


def run_tests(
    targets: tuple[str, ...], pytest_args: Sequence[str], progress: str, given: Mapping[str, Any]
) -> int:
    """Run suites or paths of tests.

    Args:
        targets: suites and paths, as typed.
        pytest_args: arguments for pytest.
        progress: display of the run.
        given: flags by field; None for those that were not given.

    Returns:
        The exit code of the command.

    Raises:
        DisttestError: it cannot be carried out as requested.
    """
    # First of all: a signal that arrives before this line ends the command without reports.
    signals = hold_signals()
    request = read_request(targets, pytest_args, progress, given)
    code: int | None = plugin_manager().call("disttest_execute_run", request=request, signals=signals)
    if code is not None:
        return code
    began_s = time.monotonic()
    if request.setup is not None:
        signum = run_setup(request.setup, signals=signals, deadline_s=request.options.deadline)
        if signum is not None:
            code = conclude(Facts(signal=signum)).exit_code
            warn_by_plugins(
                "disttest_run_finished", run=None, results=None, exit_code=code, environ=environment()
            )
            return code
        request = _shortened(request, time.monotonic() - began_s)
    return _run(request, signals)


def _shortened(request: RunRequest, spent_s: float) -> RunRequest:
    """Return the request with the time that a setup script has left of the deadline."""
    if not request.options.deadline:
        return request
    # At least 1, because 0 means no deadline.
    left_s = max(1, math.ceil(request.options.deadline - spent_s))
    return dataclasses.replace(request, flags={**request.flags, "deadline": str(left_s)})


def _run(request: RunRequest, signals: NotedSignals) -> int:
    """Run the request on this machine or elsewhere, and report the result."""
    resolved = resolve_targets(request.targets)
    with contextlib.ExitStack() as surroundings:
        request = _surrounded(request, surroundings)
        if runs_nothing(request.pytest_args):
            return _ask_pytest(request, resolved)
        return _run_and_report(request, resolved, signals)


def _surrounded(request: RunRequest, surroundings: contextlib.ExitStack) -> RunRequest:
    """Enter the contexts of plugins around a run; return the request with the options that they set."""
    hook, manager = "disttest_around_run", contextlib.AbstractContextManager
    flags = dict(request.flags)
    for name, context in plugin_manager().named(hook, manager, request=request).items():  # type: ignore[type-abstract]
        with blaming(name, hook):
            flags |= surroundings.enter_context(context)
    return dataclasses.replace(request, flags=flags, options=resolve_options(flags))


def _run_and_report(request: RunRequest, resolved: Targets, signals: NotedSignals) -> int:
    started_s = time.monotonic()
    options, selection = request.options, request.selection
    # A run that asks for missing GPUs ends here, before earlier results are moved away.
    hardware = None if request.place else make_devices(options).machine.hardware()
    directory = claim(options.results) if options.results else claim_default(warn)
    # Only the claim knows where the results of the run before are now.
    selection = selection.after(directory.earlier)
    request = dataclasses.replace(request, selection=selection)
    try:
        for name, file in request.attachments.items():
            # Names of tests in these files may contain secrets, which the journal hides, too.
            (directory.path / name).write_bytes(outgoing.json(read_input(file)))
        if request.place is not None:
            result, owes_failures = request.place.run(_prepared(request, resolved, directory, signals)), True
        else:
            assert hardware is not None
            result, owes_failures = _run_here(request, resolved, directory, hardware)
    except Exception:
        # Without a journal, the next run would refuse the directory because of its files.
        if not (directory.path / FILE_NAME).exists():
            directory.put_back_earlier()
        raise
    from disttest.cli.finish import finish_run, is_worth_keeping  # imported already, while tests ran

    keep = directory.earlier is None or is_worth_keeping(result, environment())
    code = finish_run(
        result,
        directory.path,
        settings=request.settings,
        empty_shard=request.part.is_empty,
        failures=owes_failures,
        environ=environment(),
        keep=keep,
    )
    if keep:
        remove_old(directory.path, request.settings[KEEP_RESULTS.field], warn)
    else:
        directory.put_back_earlier()
    _drain(result, options, started_s, signals)
    return end_late(code, cancelled_late(), directory.path / FILE_NAME, at_s=result.ended_at_s)


def end_late(code: int, signum: int | None, journal: Path, *, at_s: float) -> int:
    """Return the exit code of a command that a signal may have reached after its run; write it to the journal, too.

    Args:
        code: the exit code without the signal. If an earlier signal decided it, it stays: the reports name that one.
        signum: number of the signal; None if there was none.
        journal: journal of the run.
        at_s: end of the run.
    """
    if signum is None or code > 128:
        return code
    cancelled = conclude(Facts(signal=signum))
    record_end(journal, at_s=at_s, exit_code=cancelled.exit_code, reasons=[cancelled.reason])
    return cancelled.exit_code


def _ask_pytest(request: RunRequest, resolved: Targets) -> int:
    """Pass on an answer of pytest that runs no test."""
    with tempfile.TemporaryDirectory(prefix="disttest-") as folder:
        flags = filled(request.flags, Path(folder))
        return ask_pytest(resolved, flags, request.pytest_args, Shared(data=dict(request.data)))


def _prepared(
    request: RunRequest, resolved: Targets, directory: ResultsDirectory, signals: NotedSignals
) -> PreparedRun:
    return PreparedRun(
        targets=request.targets,
        flags=filled(request.flags, directory.path),
        options=request.options,
        pytest_args=request.pytest_args,
        directory=directory,
        data=request.data,
        timings=request.selection.timings,
        failed_first=request.selection.failed_first,
        part=request.part,
        invocation=_invocation(request, resolved),
        signals=signals,
    )


def _run_here(
    request: RunRequest, resolved: Targets, directory: ResultsDirectory, hardware: Hardware
) -> tuple[RunResult, bool]:
    """Return the result, and whether failures must still be printed in full."""
    # Inside torchrun or srun, a group of one process would wait for the other ranks of that launcher.
    hidden = plugin_manager().mapping("disttest_hidden_variables", tuple, environ=environment())
    for launcher, names in hidden.items():
        warn(f"hidden from the tests, because {launcher} set them for its own ranks: {', '.join(names)}")
        remove_from_environment(names)
    options, selection = request.options, request.selection
    needs_terminal = plugin_manager().call("disttest_needs_terminal", request=request)
    asked = [*(["--pdb"] if needs_terminal else []), *request.pytest_args]
    mode = choose_progress(request.progress, asked, environment(), directory.path, selection.timings)
    extra = [*mode.pytest_arguments(), *request.pytest_args]
    order = ControllerOrder(
        shared=Shared(data=dict(request.data)),
        part=request.part,
        timings=tuple(path.absolute() for path in selection.timings),
        failed_first=selection.failed_first,
        columns=mode.columns,
    )
    result = run_supervised(
        pytest_command(resolved, filled(request.flags, directory.path), extra),
        options,
        directory,
        invocation=_invocation(request, resolved),
        hardware=hardware,
        order=order,
        view=mode.view,
    )
    return result, mode.owes_failures


def _invocation(request: RunRequest, resolved: Targets) -> Invocation:
    return Invocation(
        cwd=str(Path.cwd()),
        workspace=ci_workspace(),
        bundled=resolved.bundled,
        options={**request.asked, **(request.place.record() if request.place else {})},
        pytest_args=tuple(request.pytest_args),
        environment=variables_of_classes(environment()),
        data=msgspec.to_builtins(plugin_manager().named("disttest_run_data", object, request=request)),
    )


def _drain(result: RunResult, options: RunOptions, started_s: float, signals: NotedSignals) -> None:
    """Wait for the readers of the output, within the run's deadline and not against a signal."""
    until_s = started_s + options.deadline + DEADLINE_MARGIN_S if options.deadline else math.inf
    drain_streams(until_s=0.0 if result.exit_code > 128 else until_s, wake=signals.fileno())
