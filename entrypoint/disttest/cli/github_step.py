"""``disttest github-step``: replaces a step of the action by the command that its inputs request."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from disttest.errors import DisttestError, UsageError
from disttest.options.action_inputs import INPUTS, PREFIX, read_inputs, secret_variables, step_arguments
from disttest.options.environment import environment
from disttest.options.flags import RelayingCommand
from disttest.options.registry import IN_CONTAINER

MODE = "DISTTEST_STEP_MODE"
"""Variable set by action.yml: ``in-place`` or ``launch``."""


COMMAND = "DISTTEST_STEP_COMMAND"
"""Variable set by each action.yml: ``run``, ``plan`` or ``merge``."""


STEP_PID = "DISTTEST_STEP_PID"
"""Variable with the process of the step: commands that its tests start must not publish."""


def publish_failure(exit_code: int, environ: Mapping[str, str]) -> None:
    """Publish the outputs of a step whose command ends before it has results; do nothing in other processes."""
    if environ.get(STEP_PID) == str(os.getpid()):
        from disttest.reports.outputs import failure_outputs, publish_outputs

        publish_outputs(failure_outputs(exit_code), environ)


@click.command(name="github-step", hidden=True, cls=RelayingCommand)
def github_step() -> None:
    """Run the command that the action's inputs request, in this process: the runner signals a single pid."""
    environ = environment()
    try:
        command = check_command(environ.get(COMMAND) or "run")
        in_place = environ.get(MODE) == "in-place" or command not in IN_CONTAINER
        values = read_inputs(command, environ)
        arguments = step_arguments(command, values, in_place=in_place)
        enter(values.get("working-directory", "."))
    except DisttestError as error:
        publish_failure(error.exit_code, {**environ, STEP_PID: str(os.getpid())})
        raise
    become(arguments, {**environ, **secret_variables(command, values), STEP_PID: str(os.getpid())})


def check_command(name: str) -> str:
    """Return the command if an action runs it.

    Raises:
        UsageError: there is no such action.
    """
    if name not in INPUTS:
        raise UsageError(f"{COMMAND}={name}: there are actions for {', '.join(INPUTS)}")
    return name


def enter(folder: str) -> None:
    """Change to the working directory.

    Raises:
        UsageError: there is none.
    """
    try:
        os.chdir(Path(folder))
    except (OSError, ValueError) as error:
        raise UsageError(f"input working-directory: {folder!r} cannot be entered: {error}") from None


def become(arguments: list[str], environ: Mapping[str, str]) -> None:
    """Replace this process without passing the inputs on."""
    kept = {name: value for name, value in environ.items() if not name.startswith(PREFIX)}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "disttest", *arguments], kept)  # noqa: S606
