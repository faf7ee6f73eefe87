"""The ``disttest`` command: parses, calls, prints, and is the only place that leaves the process.

Imports neither torch nor pytest: ``disttest --help`` answers at once.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

import disttest
from disttest import github
from disttest.cli.chaos import chaos_command
from disttest.cli.cluster import cluster_clean, node_agent, run_cluster, take_cluster
from disttest.cli.completion import completion
from disttest.cli.config import config
from disttest.cli.diverge import diverge
from disttest.cli.doctor import doctor
from disttest.cli.explain import explain
from disttest.cli.github_step import github_step
from disttest.cli.init import init
from disttest.cli.last_failed import only_failed
from disttest.cli.launch import launch
from disttest.cli.man import man
from disttest.cli.merge import merge_command
from disttest.cli.plan import plan_command
from disttest.cli.replay import replay
from disttest.cli.report import report, trend
from disttest.cli.resident import resident as resident_command
from disttest.cli.resident import run_by_fork, wants_resident
from disttest.cli.selection import take_selection
from disttest.cli.watch import watch_command
from disttest.errors import DisttestError, ExitCode, UsageError
from disttest.limits import DEADLINE_MARGIN_S
from disttest.masking import SHORTEST, masker
from disttest.model import Invocation, RecordRule, TestCase
from disttest.options.environment import environment
from disttest.options.flags import RegistryCommand
from disttest.options.flags import flags as flags_of
from disttest.options.project_file import read_project_settings
from disttest.options.registry import RESIDENT
from disttest.options.run import RunOptions, by_command, given_options, resolve_options
from disttest.options.values import emulated_gpus
from disttest.output import drain_streams, outlet, steady_streams
from disttest.planning.backends import is_accelerator
from disttest.planning.targets import resolve_targets, suite_names
from disttest.results.conclusion import Facts, conclude
from disttest.results.fold import RunResult
from disttest.results.repeat import variables_of_classes

_WORDS = {"record": ("run", "--record", "all")}
"""Other names for a command and its options."""


class _DefaultRun(click.Group):
    """``disttest ddp`` means ``disttest run ddp``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = [*_WORDS.get(args[0], args[:1]), *args[1:]] if args else args
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h", "--version"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DefaultRun, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(disttest.__version__)
def command() -> None:
    """Run distributed PyTorch tests: real ranks, one verdict for each test, every rank's log kept.

    \b
    disttest ddp                      a bundled suite (see: disttest list)
    disttest run tests/ -- -k reduce  your own tests; what follows -- is for pytest
    """


def _complete_targets(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Suites; files where no suite begins so, which is what bash makes of a file in the first place."""
    return [
        CompletionItem(begun, type="file"),
        *(CompletionItem(name) for name in suite_names() if name.startswith(begun)),
    ]


@command.command(cls=RegistryCommand, context_settings={"ignore_unknown_options": False})
@click.argument("targets", nargs=-1, required=True, metavar="SUITE|PATH…", shell_complete=_complete_targets)
@flags_of("run")
@click.pass_obj
def run(pytest_args: Sequence[str], /, targets: tuple[str, ...], progress: str, **flags: Any) -> None:
    """Run suites or paths of tests, and write reports into the results directory."""
    from disttest.cli.emulation import Emulation
    from disttest.cli.progress_mode import choose_progress, runs_nothing
    from disttest.results.directory import claim, claim_default
    from disttest.runtime.controller.run_devices import Devices
    from disttest.runtime.guard.guard import (
        cancelled_late,
        hold_signals,
        pytest_command,
        run_guarded,
    )
    from disttest.runtime.guard.listing import ask_pytest

    signals, setup = hold_signals(), flags.pop("setup")
    project = read_project_settings(targets)
    resident = wants_resident(flags.pop(RESIDENT.field), project, environment())
    selection = take_selection(flags)
    flags = selection.with_repeats(project.fill(flags))
    cluster = take_cluster(flags, selection.grant)
    options, asked = resolve_options(flags), given_options(flags)
    if resident:
        _let_fork_run(options, setup, cluster.launcher)
    flags = by_command(flags)
    if options.spmd and cluster.launcher:
        raise UsageError("--spmd is for one machine: leave --launcher out")
    if selection.plan is not None:
        _refuse_sizes(options)
    if options.debugpy and cluster.launcher:
        raise UsageError("--debugpy is for one machine: leave --launcher out")
    _hide(options.mask)
    if options.mask and options.record is not RecordRule.OFF:
        raise UsageError("--record and --mask: values in a recording cannot be hidden, leave one of them out")
    flags = _set_up(setup, flags, options.deadline, cluster.launcher)
    started_s = time.monotonic()
    resolved = resolve_targets(
        only_failed(targets, options.results, _warn) if selection.last_failed else targets
    )
    emulation = Emulation(options.device, launcher=cluster.launcher)
    flags = emulation.start(flags)
    options = resolve_options(flags)
    if runs_nothing(pytest_args):
        with tempfile.TemporaryDirectory(prefix="disttest-") as folder:
            extra = [*selection.pytest_arguments(), *pytest_args]
            _leave(ask_pytest(resolved, _given(flags, Path(folder)), extra))
    hardware = None if cluster.launcher else Devices(options).machine.hardware()
    directory = claim(options.results) if options.results else claim_default(_warn)
    results = directory.path
    flags = emulation.keep_in(results, flags)
    if selection.plan_file is not None:
        shutil.copyfile(selection.plan_file, results / "plan.json")
    invocation = Invocation(
        cwd=str(Path.cwd()),
        workspace=environment().get("GITHUB_WORKSPACE", ""),
        bundled=resolved.bundled,
        options=asked | cluster.record(),
        pytest_args=tuple(pytest_args),
        environment=variables_of_classes(environment()),
    )
    if cluster.launcher:
        given = _given(flags, results)
        result = run_cluster(cluster, targets, given, options, pytest_args, directory, selection, invocation)
        owes_failures = True
    else:
        assert hardware is not None
        debugged = ["--pdb"] if options.debug_rank is not None and options.debugpy is None else []
        asked_of_pytest = [*debugged, *pytest_args]
        mode = choose_progress(progress, asked_of_pytest, environment(), results, selection.timings)
        extra = [*selection.pytest_arguments(), *mode.pytest_arguments(), *pytest_args]
        argv = pytest_command(resolved, _given(flags, results), extra)
        result = run_guarded(
            argv,
            options,
            directory,
            invocation=invocation,
            hardware=hardware,
            plan=selection.plan,
            shard=selection.shard,
            view=mode.view,
        )
        owes_failures = mode.owes_failures

    from disttest.cli.finish import finish_run

    code = finish_run(
        result,
        directory.path,
        floors=selection.floors,
        empty_shard=selection.is_empty_shard,
        failures=owes_failures,
        environ=environment(),
    )
    emulation.end(results)
    # Within the deadline of the run, and not against a signal; all else is done.
    until_s = started_s + options.deadline + DEADLINE_MARGIN_S if options.deadline else math.inf
    if result.exit_code > 128:
        until_s = 0.0
    drain_streams(until_s=until_s, wake=signals.fileno())
    late = cancelled_late()
    _leave(code if late is None else conclude(Facts(signal=late)).exit_code)


def _let_fork_run(options: RunOptions, setup: Path | None, launcher: str) -> None:
    """Have a fork of the resident parent run this command, and end with it; come back where it has to run by itself."""
    from disttest.runtime.guard.guard import hold_signals

    needs_new = {
        "--setup": setup,
        "--launcher": launcher,
        f"--device {options.device}": emulated_gpus(options.device),
    }
    if (code := run_by_fork(options, needs_new, signals=hold_signals(), tell=_warn)) is not None:
        _leave(code)


def _set_up(
    script: Path | None, flags: dict[str, str | None], deadline_s: float, launcher: str
) -> dict[str, str | None]:
    """Run the user's script; the flags afterwards, whose deadline is what the script has left of it."""
    from disttest.cli.setup_script import run_setup
    from disttest.runtime.guard.guard import hold_signals

    if script is None:
        return flags
    if launcher:
        raise UsageError("--setup is for one machine: nodes of a scheduler have to be ready before the run")
    started_s = time.monotonic()
    if (signum := run_setup(script, signals=hold_signals(), deadline_s=deadline_s)) is not None:
        _leave(conclude(Facts(signal=signum)).exit_code)
    left_s = max(1, math.ceil(deadline_s - (time.monotonic() - started_s)))
    return {**flags, "deadline": str(left_s)} if deadline_s else flags


def _warn(message: str) -> None:
    click.echo(f"disttest: {message}", err=True)


def _hide(values: Sequence[str]) -> None:
    masker.open_ledger()
    if short := masker.hide(values):
        _warn(f"{len(short)} lines to be masked have fewer than {SHORTEST} characters and stay visible")


def _given(flags: dict[str, str | None], results: Path) -> dict[str, str]:
    return {name: value for name, value in flags.items() if value} | {"results": str(results)}


@command.command(name="list", cls=RegistryCommand)
@click.argument("targets", nargs=-1, metavar="[SUITE|PATH…]", shell_complete=_complete_targets)
@flags_of("list")
@click.pass_obj
def list_(
    pytest_args: Sequence[str], /, targets: tuple[str, ...], *, tests: bool, **flags: str | None
) -> None:
    """List suites and tests with the world sizes that they would run at here."""
    from disttest.runtime.guard.listing import collect_tests, render_list

    flags = by_command(read_project_settings(targets).fill(flags))
    _refuse_sizes(resolve_options(flags))
    with tempfile.TemporaryDirectory(prefix="disttest-list-") as folder:
        given = _given(flags, Path(folder))
        collection = collect_tests(
            resolve_targets(targets or suite_names()), given, pytest_args, Path(folder)
        )
    for remark in collection.remarks:
        _warn(remark)
    click.echo(render_list(collection.tests, each=tests))
    if collection.exit_code not in (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED):
        click.echo(collection.output, err=True)
    _leave(collection.exit_code, shown=True)


def _refuse_sizes(options: RunOptions) -> None:
    if len(options.spmd) > 1:
        sizes = ",".join(map(str, options.spmd))
        raise UsageError(
            f"--spmd {sizes}: what is collected depends on the size, so lists and plans are of one: "
            f"give --spmd {options.spmd[0]}"
        )


def _collect(
    targets: tuple[str, ...], flags: dict[str, str | None], pytest_args: Sequence[str], gpus: int
) -> Sequence[TestCase]:
    """Collect for a plan. What cannot be collected would be in no shard, so it is an error."""
    from disttest.runtime.guard.listing import collect_tests, for_gpu_runners

    told = any(word.startswith("--disttest-collect-for=") for word in pytest_args)
    options = resolve_options(flags)
    _refuse_sizes(options)
    if is_accelerator(options.device) and not told:
        pytest_args = [*pytest_args, *for_gpu_runners(gpus, options.device)]
    with tempfile.TemporaryDirectory(prefix="disttest-plan-") as folder:
        given = _given(flags, Path(folder))
        collection = collect_tests(resolve_targets(targets), given, pytest_args, Path(folder))
    if collection.exit_code not in (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED):
        click.echo(collection.output, err=True)
        raise UsageError(
            "some tests could not be collected (see above), and a plan without them would lose them"
        )
    for remark in collection.remarks:
        _warn(remark)
    return collection.tests


def _write_reports(result: RunResult, results: Path) -> None:
    from disttest.reports import write_reports
    from disttest.reports.outputs import publish_outputs, publish_summary, run_outputs

    write_reports(result, results)
    publish_outputs(run_outputs(result, results.absolute(), result.exit_code), environment())
    publish_summary(results, environment())


def _leave(code: int, *, shown: bool = False) -> NoReturn:
    """End the process.

    Args:
        code: its exit code.
        shown: what was printed was all that was asked for, so that it counts if nobody could read it.
    """
    try:
        drain_streams()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # noqa: TID251
    behind = outlet()
    sys.exit(code or (_unread(behind.broken) if shown and behind is not None else ExitCode.PASSED))  # noqa: TID251


def _unread(number: int) -> int:
    """The exit code of a command whose output got lost: 141 where the reader had enough (as by SIGPIPE)."""
    if not number:
        return ExitCode.PASSED
    if number == errno.EPIPE:
        return 128 + signal.SIGPIPE
    click.echo(f"disttest: the output could not be written: {os.strerror(number)}", err=True)
    return ExitCode.INTERNAL


_SHOWING = frozenset(
    {
        "list",
        "explain",
        "diverge",
        "trend",
        "plan",
        "doctor",
        "config",
        "completion",
        "man",
        "resident",
        "-h",
        "--help",
        "--version",
    }
)
"""Commands of which nothing but their output (or that first of all) is wanted."""
_CHANNELS = frozenset({"node-agent"})
"""Commands whose standard output is a channel to another process."""
_PASSES_ON = frozenset({"launch", "github-step"})
"""Commands that hand on the output of another command of ours, its words to GitHub included."""


command.add_command(doctor)
command.add_command(launch)
command.add_command(node_agent)
command.add_command(cluster_clean)
command.add_command(github_step)
command.add_command(plan_command(_collect, _leave))
command.add_command(merge_command(_write_reports, _leave))
command.add_command(chaos_command(_leave))
command.add_command(explain)
command.add_command(diverge)
command.add_command(replay)
command.add_command(report)
command.add_command(resident_command)
command.add_command(trend)
command.add_command(watch_command(lambda words: main(words)))
command.add_command(config)
command.add_command(init)
command.add_command(completion)
command.add_command(man)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point: what follows ``--`` is pytest's; errors of ours become one line and their exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    shown = bool(_SHOWING.intersection(words[:1]))
    if not _CHANNELS.intersection(words[:1]):
        on_github = environment().get("GITHUB_ACTIONS") == "true" and not _PASSES_ON.intersection(words[:1])
        steady_streams(github.harmless if on_github else None)
    split = words.index("--") if "--" in words else len(words)
    try:
        code = command.main(
            args=words[:split], obj=words[split + 1 :], prog_name="disttest", standalone_mode=False
        )
    except DisttestError as error:
        click.echo(f"disttest: {error}", err=True)
        _leave(error.exit_code)
    except click.UsageError as error:
        error.show()
        _leave(ExitCode.USAGE)
    except click.Abort:
        _leave(130)
    _leave(code or ExitCode.PASSED, shown=shown)
