"""``disttest github-step``: replaces a step of the action by the command that its inputs request.

Inputs are untrusted strings. They arrive as variables (never inside a shell script), each becomes complete
arguments of one process, and the command checks them as it checks a user's. An empty string means "not set".
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import click
from msgspec.structs import replace

from disttest.errors import DisttestError, UsageError
from disttest.model import Frozen
from disttest.options.environment import environment
from disttest.options.flags import RelayingCommand
from disttest.options.option import Option
from disttest.options.registry import (
    IN_CONTAINER,
    options_of,
)
from disttest.options.values import SWITCH
from disttest.plugins.github.outputs import STEP_PID, publish_failure

PREFIX = "DISTTEST_INPUT_"
MODE = "DISTTEST_STEP_MODE"
"""Variable set by action.yml: ``in-place`` or ``launch``."""
COMMAND = "DISTTEST_STEP_COMMAND"
"""Variable set by each action.yml: ``run``, ``plan`` or ``merge``."""


class InputKind(StrEnum):
    """How an input is used."""

    TARGETS = "targets"
    PYTEST = "pytest"
    STEP = "step"
    OPTION = "option"


class Input(Frozen):
    """An input of the action."""

    name: str
    help: str
    default: str = ""
    kind: InputKind = InputKind.OPTION
    own: Option | None = None
    """The option of the command that the action runs."""
    launch: Option | None = None
    """The option of ``disttest launch``, which precedes the command if a container is started."""

    @property
    def variable(self) -> str:
        """Variable that carries it from action.yml."""
        return PREFIX + self.name.replace("-", "_").upper()

    @property
    def is_for_nodes(self) -> bool:
        """Whether it configures the container of the step, and with ``launcher`` the containers of the nodes."""
        return self.launch is not None and self.own is not None and self.own.elsewhere


_SUITE = Input(
    name="suite",
    kind=InputKind.TARGETS,
    help="Suites and paths of tests, separated by spaces or lines; quote what has spaces.",
)
_PYTEST_ARGS = Input(
    name="pytest-args",
    kind=InputKind.PYTEST,
    help="Arguments for pytest, quoted as in a shell: -k 'reduce and not slow'.",
)
_DIRECTORIES = Input(
    name="directories",
    kind=InputKind.TARGETS,
    help="Folders with the results of shards, separated by spaces or lines.",
)
_WORKING_DIRECTORY = Input(
    name="working-directory", kind=InputKind.STEP, help="Where to run; other paths are relative to it."
)
_IN_PLACE = Input(
    name="in-place",
    kind=InputKind.STEP,
    help="auto (where disttest is installed already), always or never.",
    default="auto",
)
_BEFORE = {"merge": (_DIRECTORIES,), "doctor": ()}


def _inputs(command: str) -> tuple[Input, ...]:
    """Return the inputs of a command's action: its own options, then those of the step and its container."""
    own = {option.name: option for option in options_of(command) if command in option.inputs}
    launch = {option.name: option for option in options_of("launch") if command in option.inputs}
    rows = [_input(name, own.get(name), launch.get(name)) for name in dict.fromkeys((*own, *launch))]
    before = _BEFORE.get(command, (_SUITE, _PYTEST_ARGS))
    step = (_WORKING_DIRECTORY, *((_IN_PLACE,) if command in IN_CONTAINER else ()))
    of_command = [row for row in rows if row.own and not row.is_for_nodes]
    return (*before, *of_command, *step, *(row for row in rows if row not in of_command))


def _input(name: str, own: Option | None, launch: Option | None) -> Input:
    option = own or launch
    assert option is not None
    # A reader of a workflow knows inputs, not flags; arguments of other programs have a value behind them.
    text = re.sub(r"--([a-z][a-z-]*)(?![\w=-])", r"`\1`", option.input_description)
    row = Input(name=name, help=text, default=option.input_default, own=own, launch=launch)
    if own is None or launch is None or not row.is_for_nodes:
        return row
    nodes = f"{own.help[0].lower()}{own.help[1:]}"
    return replace(row, help=f"{launch.input_description} With launcher: {nodes}")


INPUTS = {command: _inputs(command) for command in ("run", "plan", "merge", "doctor")}
"""Command, mapped to the inputs of the action that runs it."""


def read_inputs(command: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values by name, without empty or blank ones."""
    # GitHub passes an empty text for an input that a workflow leaves out.
    values = {one.name: environ.get(one.variable, "").strip() or one.default for one in INPUTS[command]}
    return {name: value for name, value in values.items() if value}


def step_arguments(command: str, values: Mapping[str, str], *, in_place: bool) -> list[str]:
    """Return the command line: the command itself in place, otherwise with ``launch …`` before it.

    Raises:
        UsageError: an input is invalid; the message names it.
    """
    inputs = [one for one in INPUTS[command] if values.get(one.name)]
    # Secrets travel as variables (secret_variables), since a command line is visible to all processes.
    own = [one for one in inputs if one.own and not one.own.secret]
    tail = [*_targets(command, values), *_pytest_args(values)]
    if command == "run" and values.get("launcher"):
        if not in_place:
            raise UsageError(
                f"input launcher: {values['launcher']!r} is contacted from the runner: install disttest and the "
                "packages of the tests there (in-place: always)"
            )
        _refuse_without_container([one for one in inputs if not one.is_for_nodes], values)
        return [command, *_flags(own, values), *tail]
    if in_place and command in IN_CONTAINER:
        _refuse_without_container(inputs, values)
    if in_place or command not in IN_CONTAINER:
        return [command, *_flags([one for one in own if not one.is_for_nodes], values), *tail]
    outer = _flags([one for one in inputs if one.launch and not one.launch.secret], values)
    inner = _flags([one for one in own if not one.launch], values)
    return ["launch", *outer, command, *inner, *tail]


def _refuse_without_container(inputs: Sequence[Input], values: Mapping[str, str]) -> None:
    """Refuse inputs that only a container can honour, instead of running without it.

    Raises:
        UsageError: such an input is set.
    """
    for one in inputs:
        advice = one.launch.outside_container if one.launch else ""
        # A default or `false` asks for nothing, so workflows may write it in both modes.
        if advice and values[one.name].lower() not in (one.default, "false"):
            raise UsageError(
                f"input {one.name}: no container is started here, as disttest is installed: {advice}"
            )


def secret_variables(command: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return the inputs that may hold secrets, as the variables of their options."""
    options = (option for one in INPUTS[command] if values.get(one.name) for option in (one.own, one.launch))
    return {option.variable: values[option.name] for option in options if option and option.secret}


def _targets(command: str, values: Mapping[str, str]) -> list[str]:
    name = next((one.name for one in INPUTS[command] if one.kind is InputKind.TARGETS), "")
    if not name:
        return []
    targets = _words(name, values.get(name, ""))
    if not targets:
        wanted = "a suite such as ddp, or a path of tests" if name == "suite" else "a folder"
        raise UsageError(f"input {name} is empty: name {wanted}")
    # The command would read it as an option, past the inputs.
    if stray := next((target for target in targets if target.startswith("-")), None):
        raise UsageError(f"input {name}: {stray!r} is a flag")
    return targets


def _pytest_args(values: Mapping[str, str]) -> list[str]:
    words = _words("pytest-args", values.get("pytest-args", ""))
    return ["--", *words] if words else []


def _flags(inputs: Sequence[Input], values: Mapping[str, str]) -> list[str]:
    # Each is one word, so that no value can become a separate flag.
    return [f"--{one.name}={text}" for one in inputs for text in _texts(one, values[one.name])]


def _texts(one: Input, value: str) -> list[str]:
    option = one.own or one.launch
    assert option is not None
    if option.many:
        return [line.strip() for line in value.splitlines() if line.strip()]
    if option.is_switch:
        _check_switch(one.name, value)
    return [value]


def _check_switch(name: str, value: str) -> None:
    """Check that a switch is true or false, as YAML writes them.

    Raises:
        UsageError: it is neither.
    """
    try:
        SWITCH.parse(value)
    except UsageError as error:
        raise UsageError(f"input {name}: {error}") from None


def _words(name: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"input {name}: {error} in {text!r}") from None


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
        # The step has outputs even if its command never starts: later steps read them.
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
    # Inputs may hold secrets, and tests see the environment.
    kept = {name: value for name, value in environ.items() if not name.startswith(PREFIX)}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "disttest", *arguments], kept)  # noqa: S606
