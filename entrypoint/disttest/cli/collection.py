"""What is collected without being run: the ``list`` command, and the tests of a plan."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from disttest.cli.run import complete_targets
from disttest.cli.words import warn
from disttest.errors import ExitCode, UsageError
from disttest.model import TestCase
from disttest.options.flags import RegistryCommand, flags
from disttest.options.project_file import read_project_settings
from disttest.options.run import by_command, filled, resolve_options
from disttest.planning.backends import is_accelerator
from disttest.planning.targets import resolve_targets, suite_names
from disttest.plugin_manager import plugin_manager

_COMPLETE = (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED)


def list_command(leave: Callable[..., Any]) -> click.Command:
    """The command, around a way to end."""

    @click.command(name="list", cls=RegistryCommand)
    @click.argument("targets", nargs=-1, metavar="[SUITE|PATH…]", shell_complete=complete_targets)
    @flags("list")
    @click.pass_obj
    def list_(
        pytest_args: Sequence[str], /, targets: tuple[str, ...], *, tests: bool, **given: str | None
    ) -> None:
        """List suites and tests with the world sizes that they would run at here."""
        from disttest.runtime.guard.listing import collect_tests, render_list

        flags = by_command(read_project_settings(targets).fill(given))
        plugin_manager().call("disttest_check_collection", options=resolve_options(flags))
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


def collect_for_plan(
    targets: tuple[str, ...], flags: dict[str, str | None], pytest_args: Sequence[str], gpus: int
) -> Sequence[TestCase]:
    """Collect for a plan. What cannot be collected would be in no shard, so it is an error.

    Args:
        targets: of the plan.
        flags: options of the runs, by their names for pytest.
        pytest_args: what is for pytest.
        gpus: of the largest runner; 0 if that is not known.

    Raises:
        UsageError: a test cannot be collected.
    """
    from disttest.runtime.guard.listing import collect_tests, for_gpu_runners

    told = any(word.startswith("--disttest-collect-for=") for word in pytest_args)
    options = resolve_options(flags)
    plugin_manager().call("disttest_check_collection", options=options)
    if is_accelerator(options.device) and not told:
        pytest_args = [*pytest_args, *for_gpu_runners(gpus, options.device)]
    with tempfile.TemporaryDirectory(prefix="disttest-plan-") as folder:
        given = filled(flags, Path(folder))
        collection = collect_tests(resolve_targets(targets), given, pytest_args, Path(folder))
    if collection.exit_code not in _COMPLETE:
        click.echo(collection.output, err=True)
        raise UsageError(
            "some tests could not be collected (see above), and a plan without them would lose them"
        )
    for remark in collection.remarks:
        warn(remark)
    return collection.tests
