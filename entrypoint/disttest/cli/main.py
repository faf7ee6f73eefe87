"""The ``disttest`` command: parses, calls, prints, and is the only place that leaves the process.

Imports neither torch nor pytest: ``disttest --help`` answers at once.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

import disttest
from disttest.commands.cluster import cluster_clean, cluster_options, node_agent, run_cluster, take_cluster
from disttest.commands.explain import explain
from disttest.commands.merge import merge_command
from disttest.commands.plan import plan_command
from disttest.commands.selection import selection_options, take_selection
from disttest.doctor.commands import doctor
from disttest.errors import DisttestError, ExitCode, UsageError
from disttest.launch.commands import launch
from disttest.launch.step import github_step
from disttest.masking import SHORTEST, masker
from disttest.model import Invocation, TestCase
from disttest.planning.options import OPTIONS, environment, given_options, resolve_options
from disttest.planning.targets import resolve_targets, suite_names
from disttest.reports.commands import report, trend
from disttest.results.fold import RunResult


class _DefaultRun(click.Group):
    """``disttest ddp`` means ``disttest run ddp``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
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


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a run."""
    for option in reversed(OPTIONS):
        function = click.option(
            f"--{option.name}",
            option.field,
            **({"is_flag": True, "flag_value": "true"} if option.switch else {"metavar": option.metavar}),
            help=f"{option.help}  [{option.variable}]",
            multiple=option.secret,
            callback=_joined if option.secret else None,
        )(function)
    return function


def _joined(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> str:
    if any(len(value.strip()) < SHORTEST for value in values):
        raise UsageError(f"--mask: a value of fewer than {SHORTEST} characters can not be hidden")
    return "\n".join(values)


@command.command(context_settings={"ignore_unknown_options": False})
@click.argument("targets", nargs=-1, required=True, metavar="SUITE|PATH…")
@click.option(
    "--progress",
    type=click.Choice(("auto", "live", "lines", "pytest")),
    default="auto",
    show_default=True,
    help="What a run shows while it lasts; pytest: its own output.",
)
@selection_options
@cluster_options
@run_options
@click.pass_obj
def run(pytest_args: Sequence[str], /, targets: tuple[str, ...], progress: str, **flags: Any) -> None:
    """Run suites or paths of tests, and write reports into the results directory."""
    from disttest.commands.showing import choose_showing, runs_nothing
    from disttest.results.directory import claim
    from disttest.running.devices import Devices
    from disttest.running.guard import cancelled_late, hold_signals, pytest_command, run_guarded
    from disttest.running.listing import ask_pytest

    hold_signals()
    selection = take_selection(flags)
    cluster = take_cluster(flags, selection.grant)
    options = resolve_options(flags)
    _hide(options.mask)
    resolved = resolve_targets(targets)
    if runs_nothing(pytest_args):
        with tempfile.TemporaryDirectory(prefix="disttest-") as folder:
            extra = [*selection.pytest_arguments(), *pytest_args]
            _leave(ask_pytest(resolved, _given(flags, Path(folder)), extra))
    hardware = None if cluster.launcher else Devices(options).machine.hardware()
    results = claim(options.results or Path("results"))
    if selection.plan_file is not None:
        shutil.copyfile(selection.plan_file, results / "plan.json")
    invocation = Invocation(
        cwd=str(Path.cwd()),
        bundled=resolved.bundled,
        options=given_options(flags) | cluster.record(),
        pytest_args=tuple(pytest_args),
    )
    if cluster.launcher:
        given = _given(flags, results)
        result = run_cluster(cluster, targets, given, options, pytest_args, results, selection, invocation)
        owes_failures = True
    else:
        assert hardware is not None
        showing = choose_showing(progress, pytest_args, environment(), results, selection.timings)
        extra = [*selection.pytest_arguments(), *showing.pytest_arguments(), *pytest_args]
        argv = pytest_command(resolved, _given(flags, results), extra)
        result = run_guarded(
            argv,
            options,
            results,
            invocation=invocation,
            hardware=hardware,
            plan=selection.plan,
            shard=selection.shard,
            view=showing.view,
        )
        owes_failures = showing.owes_failures

    from disttest.commands.ending import finish_run

    code = finish_run(
        result,
        results,
        floors=selection.floors,
        empty_shard=selection.is_empty_shard,
        failures=owes_failures,
        environ=environment(),
    )
    late = cancelled_late()
    _leave(code if late is None else 128 + late)


def _hide(values: Sequence[str]) -> None:
    masker.open_ledger()
    if short := masker.hide(values):
        click.echo(
            f"disttest: {len(short)} lines to be masked have fewer than {SHORTEST} characters and stay visible",
            err=True,
        )


def _given(flags: dict[str, str | None], results: Path) -> dict[str, str]:
    return {name: value for name, value in flags.items() if value} | {"results": str(results)}


@command.command(name="list")
@click.argument("targets", nargs=-1, metavar="[SUITE|PATH…]")
@click.option("--tests", "each", is_flag=True, help="List every test, not only the suites.")
@run_options
@click.pass_obj
def list_(
    pytest_args: Sequence[str], /, targets: tuple[str, ...], *, each: bool, **flags: str | None
) -> None:
    """List suites and tests with the world sizes that they would run at here."""
    from disttest.running.listing import collect_tests, render_list

    resolve_options(flags)
    with tempfile.TemporaryDirectory(prefix="disttest-list-") as folder:
        given = _given(flags, Path(folder))
        collection = collect_tests(
            resolve_targets(targets or suite_names()), given, pytest_args, Path(folder)
        )
    click.echo(render_list(collection.tests, each=each))
    if collection.exit_code not in (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED):
        click.echo(collection.output, err=True)
    _leave(collection.exit_code)


def _collect(
    targets: tuple[str, ...], flags: dict[str, str | None], pytest_args: Sequence[str], gpus: int
) -> Sequence[TestCase]:
    """Collect for a plan. What can not be collected would be in no shard, so it is an error."""
    from disttest.running.listing import collect_tests, for_gpu_runners

    told = any(word.startswith("--disttest-host=") for word in pytest_args)
    if resolve_options(flags).device == "cuda" and not told:
        pytest_args = [*pytest_args, *for_gpu_runners(gpus)]
    with tempfile.TemporaryDirectory(prefix="disttest-plan-") as folder:
        given = _given(flags, Path(folder))
        collection = collect_tests(resolve_targets(targets), given, pytest_args, Path(folder))
    if collection.exit_code not in (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED):
        click.echo(collection.output, err=True)
        raise UsageError(
            "some tests could not be collected (see above), and a plan without them would lose them"
        )
    return collection.tests


def _write_reports(result: RunResult, results: Path) -> None:
    from disttest.reports import write_reports
    from disttest.reports.outputs import publish_outputs, publish_summary, run_outputs

    write_reports(result, results)
    publish_outputs(run_outputs(result, results.absolute(), result.exit_code), environment())
    publish_summary(results, environment())


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.exit(code)  # noqa: TID251


command.add_command(doctor)
command.add_command(launch)
command.add_command(node_agent)
command.add_command(cluster_clean)
command.add_command(github_step)
command.add_command(plan_command(_collect, _leave, run_options))
command.add_command(merge_command(_write_reports, _leave))
command.add_command(explain)
command.add_command(report)
command.add_command(trend)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point: what follows ``--`` is pytest's; errors of ours become one line and their exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
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
    _leave(code or ExitCode.PASSED)
