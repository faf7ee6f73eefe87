"""The ``run`` command, and the completion of its targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from disttest.cli.purposes import Purpose, serves
from disttest.options.flags import CollectingCommand
from disttest.options.flags import flags as flags_of
from disttest.planning.targets import suite_names


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
    @flags_of("run")
    @click.pass_obj
    def run(pytest_args: Sequence[str], /, targets: tuple[str, ...], progress: str, **given: Any) -> Any:
        """Run suites or paths of tests, and write reports into the results directory.

        Without a target, pytest chooses the tests: those below its testpaths, or below the current folder.
        """
        return do(targets, pytest_args, progress, given)

    return run
