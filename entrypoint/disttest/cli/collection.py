"""``disttest list``: suites and tests with the world sizes that they would run at."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from disttest.cli.purposes import Purpose, serves
from disttest.cli.run import complete_targets
from disttest.cli.words import warn
from disttest.errors import ExitCode
from disttest.options.flags import ListingCommand, flags
from disttest.options.project_file import read_project_settings
from disttest.options.run import by_command, filled, resolve_options
from disttest.planning.targets import resolve_targets, suite_names
from disttest.plugin_manager import plugin_manager

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
