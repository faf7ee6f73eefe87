"""The commands of the core: ``run``, ``list`` and ``report``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from disttest.cli.purposes import Purpose, serves
from disttest.cli.words import warn
from disttest.errors import ExitCode, UsageError
from disttest.options.flags import CollectingCommand, ListingCommand, RegistryCommand, flags
from disttest.options.project_file import read_project_settings
from disttest.options.run import by_command, filled, resolve_options
from disttest.options.values import one_of
from disttest.planning.targets import resolve_targets, suite_names
from disttest.plugin_manager import plugin_manager
from disttest.reports.past_runs import PastRun
from disttest.reports.write import rebuild, reporters
from disttest.results.directory import no_run_writes


def complete_targets(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Complete suites; otherwise files, which bash completes first."""
    return [
        CompletionItem(begun, type="file"),
        *(CompletionItem(name) for name in suite_names() if name.startswith(begun)),
    ]


Run = Callable[[tuple[str, ...], Sequence[str], str, Mapping[str, Any]], Any]
"""Called with targets, arguments of pytest, display, and flags by field."""


def run_command(do: Run) -> click.Command:
    """Return the command; ``do`` runs the parsed request."""

    @serves(Purpose.RUN)
    @click.command(name="run", cls=CollectingCommand, context_settings={"ignore_unknown_options": False})
    @click.argument("targets", nargs=-1, metavar="[SUITE|PATH…]", shell_complete=complete_targets)
    @flags("run")
    @click.pass_obj
    def run(pytest_args: Sequence[str], /, targets: tuple[str, ...], progress: str, **given: Any) -> Any:
        """Run suites or paths of tests, and write reports into the results directory.

        Without a target, pytest chooses the tests: those below its testpaths, or below the current folder.
        """
        return do(targets, pytest_args, progress, given)

    return run


_COMPLETE = (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED)


def list_command(leave: Callable[..., Any]) -> click.Command:
    """Return the command; ``leave`` ends the process."""

    @serves(Purpose.RUN)
    @click.command(name="list", cls=ListingCommand)
    @click.argument("targets", nargs=-1, metavar="[SUITE|PATH…]", shell_complete=complete_targets)
    @flags("list")
    @click.pass_obj
    def list_(
        pytest_args: Sequence[str], /, targets: tuple[str, ...], *, tests: bool, **given: str | None
    ) -> None:
        """List suites and tests with the world sizes that they would run at here."""
        from disttest.runtime.supervisor.listing import collect_tests, render_list

        flags = by_command(read_project_settings(targets).fill(given))
        plugin_manager().call("disttest_check_collection", options=resolve_options(flags))
        # pytest's process needs a results directory, and the user's own has to keep the last run.
        with tempfile.TemporaryDirectory(prefix="disttest-list-") as folder:
            resolved = resolve_targets(targets or suite_names())
            collection = collect_tests(resolved, filled(flags, Path(folder)), pytest_args, Path(folder))
        for remark in collection.remarks:
            warn(remark)
        click.echo(render_list(collection.tests, each=tests))
        if collection.exit_code not in _COMPLETE:
            click.echo(collection.output, err=True)
        leave(collection.exit_code, shown=True)

    return list_


ALL = "all"


@serves(Purpose.RESULTS)
@click.command(cls=RegistryCommand)
@click.argument("results_dir", metavar="[DIR]", default="results", type=click.Path(path_type=Path))
@flags("report", format=one_of(ALL, *reporters()))
def report(results_dir: Path, history: tuple[Path, ...], **given: tuple[str, ...]) -> None:
    """Write the reports of a run again, from its journal in DIR (default: results).

    \b
    disttest report                               all reports of the last run
    disttest report old --format junit            only old/junit.xml
    disttest report --format html --history old   report.html with the trend since that run
    """
    _check_is_folder(results_dir)
    formats = given["format"]
    wanted = tuple(reporters()) if not formats or ALL in formats else formats
    # Reports of a run in progress would show half of it, and its own would replace them.
    with no_run_writes(results_dir):
        written = rebuild(results_dir, wanted, history=_past_runs(history))
    for path in written:
        click.echo(f"wrote {path}")


def _past_runs(paths: Sequence[Path]) -> list[PastRun] | None:
    """Read the runs of these files and directories; None without any."""
    found: list[PastRun] = []
    for path in paths:
        runs = plugin_manager().call("disttest_read_past_runs", path=path)
        if runs is None:
            raise UsageError(
                f"{path} has no earlier run that can be read; give the results directory of a run"
            )
        found += runs
    return found if paths else None


def _check_is_folder(path: Path) -> None:
    if not path.is_dir():
        raise UsageError(f"no results directory {path}: give the one that the run wrote into")
