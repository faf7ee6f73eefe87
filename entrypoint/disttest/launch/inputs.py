"""The action's inputs, and the command line that they amount to.

Inputs are untrusted strings. They arrive as variables (never inside a shell script), each becomes whole
arguments of one process, and the command checks them as it checks a user's. An empty string means "not set".
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from disttest.errors import UsageError
from disttest.planning.options import OPTIONS

PREFIX = "DISTTEST_INPUT_"


class Kind(StrEnum):
    """What becomes of an input."""

    TARGETS = "targets"
    PYTEST = "pytest"
    STEP = "step"
    RUN = "run"
    LAUNCH = "launch"
    SWITCH = "switch"
    LINES = "lines"


class Input(NamedTuple):
    """An input of the action."""

    name: str
    kind: Kind
    help: str
    default: str = ""
    flag: str = ""
    """Flag of the command; ``--name`` unless given."""

    @property
    def variable(self) -> str:
        """The variable that carries it from action.yml."""
        return PREFIX + self.name.replace("-", "_").upper()

    @property
    def option(self) -> str:
        """The command's flag."""
        return self.flag or f"--{self.name}"


BOTH = ("results", "deadline")
"""Options of a run that the launcher has to know too."""

INPUTS = (
    Input(
        "suite",
        Kind.TARGETS,
        "Suites and paths of tests, separated by spaces or lines; quote what has spaces.",
    ),
    Input(
        "pytest-args", Kind.PYTEST, "Arguments for pytest, quoted as in a shell: -k 'reduce and not slow'."
    ),
    *(Input(option.name, Kind.RUN, option.help) for option in OPTIONS),
    Input("working-directory", Kind.LAUNCH, "Where to run.", flag="--workdir"),
    Input(
        "in-place", Kind.STEP, "auto (where disttest is installed already), always or never.", default="auto"
    ),
    Input("gpus", Kind.LAUNCH, "GPUs of the container: auto, all, none, a count, UUIDs, or device=INDEX."),
    Input("image", Kind.LAUNCH, "Image to start; the released one of this version unless given."),
    Input("target", Kind.LAUNCH, "Build of the released image: auto, cpu, cuda or full."),
    Input("pull", Kind.LAUNCH, "When to pull the image: missing, always or never."),
    Input(
        "engine",
        Kind.LAUNCH,
        "Address of the container engine; DOCKER_HOST and the usual places unless given.",
    ),
    Input("user", Kind.LAUNCH, "User of the container: auto (the workspace's owner), image, or UID:GID."),
    Input("network", Kind.LAUNCH, "Network of the container, such as none or host."),
    Input("read-only", Kind.SWITCH, "true mounts the image read-only."),
    Input("shm-size", Kind.LAUNCH, "Size of /dev/shm, such as 8g."),
    Input("time-limit", Kind.LAUNCH, "Seconds after which the container ends, watched or not."),
    Input("cache", Kind.LAUNCH, "Folder for caches that outlive the container."),
    Input("leases", Kind.LAUNCH, "Folder in which the runners of this host lease GPUs."),
    Input("env", Kind.LINES, "More variables for the container, one NAME or NAME=VALUE a line."),
    Input("mount", Kind.LINES, "More folders of the host, one PATH or PATH:ro a line."),
)


def read_inputs(environ: Mapping[str, str]) -> dict[str, str]:
    """Values by name; those that are empty or blank are left out."""
    values = {one.name: environ.get(one.variable, "").strip() or one.default for one in INPUTS}
    return {name: value for name, value in values.items() if value}


def step_arguments(values: Mapping[str, str], *, in_place: bool) -> list[str]:
    """The command line: ``run …`` in place, ``launch … run …`` otherwise.

    Raises:
        UsageError: an input makes no sense; the message names it.
    """
    targets = _words("suite", values.get("suite", ""))
    if not targets:
        raise UsageError("input suite is empty: name a suite such as ddp, or a path of tests")
    if stray := next((target for target in targets if target.startswith("-")), None):
        raise UsageError(f"input suite: {stray!r} is a flag; flags of pytest go into pytest-args")
    pytest_args = _words("pytest-args", values.get("pytest-args", ""))
    run = [_flag(one, values[one.name]) for one in INPUTS if one.kind is Kind.RUN and one.name in values]
    tail = [*targets, *(("--", *pytest_args) if pytest_args else ())]
    if in_place:
        return ["run", *run, *tail]
    inner = [flag for flag in run if not flag.startswith(tuple(f"--{name}=" for name in BOTH))]
    return ["launch", *_launch_flags(values), "run", *inner, *tail]


def _launch_flags(values: Mapping[str, str]) -> list[str]:
    flags = []
    for one in INPUTS:
        value = values.get(one.name, "")
        if not value:
            continue
        if one.kind is Kind.LAUNCH or one.name in BOTH:
            flags.append(_flag(one, value))
        elif one.kind is Kind.SWITCH:
            flags += [one.option] if is_true(one.name, value) else []
        elif one.kind is Kind.LINES:
            flags += [_flag(one, line.strip()) for line in value.splitlines() if line.strip()]
    return flags


def _flag(one: Input, value: str) -> str:
    # One word, so that no value can become a flag of its own.
    return f"{one.option}={value}"


def is_true(name: str, value: str) -> bool:
    """A switch: true or false, as YAML writes them.

    Raises:
        UsageError: it is neither.
    """
    if value.lower() not in ("true", "false"):
        raise UsageError(f"input {name}: {value!r} is not true or false")
    return value.lower() == "true"


def _words(name: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"input {name}: {error} in {text!r}") from None
