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
from disttest.planning.cluster_options import CLUSTER_OPTIONS, ClusterOption, Takes
from disttest.planning.options import OPTIONS, Option

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
    RUN_SWITCH = "run-switch"
    RUN_LINES = "run-lines"
    SECRET = "secret"  # noqa: S105
    """It travels as a variable, never on a command line."""


class Input(NamedTuple):
    """An input of the action."""

    name: str
    kind: Kind
    help: str
    default: str = ""

    @property
    def variable(self) -> str:
        """The variable that carries it from action.yml."""
        return PREFIX + self.name.replace("-", "_").upper()

    @property
    def option(self) -> str:
        """The command's flag."""
        return f"--{self.name}"


BOTH = ("results", "deadline", "gpus", "lease-dir")
"""Options of a run that the launcher has to know too."""

_TARGETS = (
    Input(
        "suite",
        Kind.TARGETS,
        "Suites and paths of tests, separated by spaces or lines; quote what has spaces.",
    ),
    Input(
        "pytest-args", Kind.PYTEST, "Arguments for pytest, quoted as in a shell: -k 'reduce and not slow'."
    ),
)
_CONTAINER = (
    Input("working-directory", Kind.STEP, "Where to run; other paths are relative to it."),
    Input(
        "in-place", Kind.STEP, "auto (where disttest is installed already), always or never.", default="auto"
    ),
    Input(
        "image",
        Kind.LAUNCH,
        "Image to start; the released one of this version unless given. With launcher: the nodes' image.",
    ),
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
    Input("env", Kind.LINES, "More variables for the container, one NAME or NAME=VALUE a line."),
    Input("mount", Kind.LINES, "More folders of the host, one PATH or PATH:ro a line."),
)
_DEVICES = (
    Input("gpus", Kind.LAUNCH, "GPUs of the container: auto, all, none, a count, UUIDs, or device=INDEX."),
    Input("lease-dir", Kind.RUN, "Folder in which the runners of this host lease GPUs."),
)


def _kind(option: Option) -> Kind:
    if option.secret:
        return Kind.SECRET
    return Kind.RUN_SWITCH if option.switch else Kind.RUN


_RUN = tuple(Input(option.name, _kind(option), option.help) for option in OPTIONS)
_RUN_OF_A_PLAN = tuple(one for one in _RUN if one.name in ("world-sizes", "backend", "device", "timeout"))

_FLOORS = (
    Input("min-tests", Kind.RUN, "Fail if fewer tests ran."),
    Input("max-skip-ratio", Kind.RUN, "Fail if a larger part was skipped, from 0 to 1."),
    Input("expect", Kind.RUN, "Fail if a test named in this file did not run."),
)
_STRICT = Input("strict", Kind.RUN_SWITCH, "true fails if a suite can not run here: all of it was skipped.")
_SELECTION = (
    Input("plan", Kind.RUN, "Plan of which a shard is to run."),
    Input("shard", Kind.RUN, "Which shard of the plan."),
    Input("revision", Kind.RUN, "State of the repository; must be the plan's."),
    Input(
        "stale-plan", Kind.RUN_SWITCH, "true runs a plan of another state; new tests go to the last shard."
    ),
    Input("timings", Kind.RUN_LINES, "Results of earlier runs, one file a line."),
    Input("failed-first", Kind.RUN_SWITCH, "true starts with the tests that failed in the newest timings."),
    *_FLOORS,
    _STRICT,
)

_SHARED_WITH_LAUNCH = ("image", "mount")
"""Inputs that mean the container of the step, and with ``launcher`` the containers of the nodes."""


def _on_cluster(option: ClusterOption) -> Input:
    kind = Kind.RUN_LINES if option.takes is Takes.MANY else Kind.RUN
    help_ = (
        f"One a line: {option.help[0].lower()}{option.help[1:]}" if kind is Kind.RUN_LINES else option.help
    )
    return Input(option.name, kind, help_)


CLUSTER_INPUTS = tuple(
    _on_cluster(option) for option in CLUSTER_OPTIONS if option.name not in _SHARED_WITH_LAUNCH
)
"""Where the runner is a machine that submits: the step runs in place, and the engine has the nodes."""
RUN_INPUTS = (*_TARGETS, *_SELECTION, *_RUN, *CLUSTER_INPUTS, *_CONTAINER)
PLAN_INPUTS = (
    *_TARGETS,
    *_RUN_OF_A_PLAN,
    Input(
        "pool",
        Kind.RUN_LINES,
        "Kinds of runners, one NAME:GPUS:RUNNERS[:COST] a line, or nodes: NAME:slurm[:PARTITION[:NODESxGPUS]].",
    ),
    Input("nodes", Kind.RUN, "Spread each world over that many nodes of a pool of nodes."),
    Input("labels", Kind.RUN_LINES, "runs-on of the pools, one NAME=LABEL,… a line."),
    Input("shards", Kind.RUN, "Split over that many equal runners instead."),
    Input("by", Kind.RUN, "world-size: one shard for each world size instead."),
    Input("timings", Kind.RUN_LINES, "Results of earlier runs, one file a line."),
    Input("hardware", Kind.RUN, "GPU model that the runners have, or cpu."),
    Input("revision", Kind.RUN, "State of the repository, kept in the plan."),
    Input("output", Kind.RUN, "Where the plan goes.", default="plan.json"),
    Input("matrix", Kind.RUN, "Where the matrix goes, which is an output too.", default="matrix.json"),
    Input("allow-empty", Kind.RUN_SWITCH, "true takes a plan without tests as success."),
    *_DEVICES,
    *_CONTAINER,
)
MERGE_INPUTS = (
    Input("directories", Kind.TARGETS, "Folders with the results of shards, separated by spaces or lines."),
    Input("plan", Kind.RUN, "The plan; the plan.json in a folder unless given."),
    Input("shards", Kind.RUN, "Without a plan: how many shards there must be."),
    Input("reruns", Kind.RUN_SWITCH, "true takes two results of one shard as a run and its re-run."),
    Input("results", Kind.RUN, "Where the merged results go.", default="merged"),
    *_FLOORS,
    Input("working-directory", Kind.STEP, "Where to run; other paths are relative to it."),
)
DOCTOR_INPUTS = (
    Input("level", Kind.RUN, "How much work to do; disttest doctor --help names the levels."),
    Input("json", Kind.RUN, "File for everything that was found."),
    Input("junit", Kind.RUN, "File for JUnit XML, with one case for each device and check."),
    *_DEVICES,
    *_CONTAINER,
)
INPUTS = {"run": RUN_INPUTS, "plan": PLAN_INPUTS, "merge": MERGE_INPUTS, "doctor": DOCTOR_INPUTS}
"""Command -> inputs of the action that runs it."""
IN_CONTAINER = ("run", "plan", "doctor")
"""They import tests, and so need torch; the others run on the host."""


def read_inputs(command: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Values by name; those that are empty or blank are left out."""
    values = {one.name: environ.get(one.variable, "").strip() or one.default for one in INPUTS[command]}
    return {name: value for name, value in values.items() if value}


def step_arguments(command: str, values: Mapping[str, str], *, in_place: bool) -> list[str]:
    """The command line: the command itself in place, ``launch …`` before it otherwise.

    Raises:
        UsageError: an input makes no sense; the message names it.
    """
    flags = [flag for one in INPUTS[command] for flag in _run_flags(one, values.get(one.name, ""))]
    tail = [*_targets(command, values), *_pytest_args(values)]
    if command == "run" and values.get("launcher"):
        if not in_place:
            raise UsageError(
                f"input launcher: {values['launcher']!r} is reached from the runner itself, so disttest and what the "
                "tests import have to be installed there (in-place: always)"
            )
        shared = [one for one in INPUTS[command] if one.name in _SHARED_WITH_LAUNCH]
        return [command, *flags, *_launch_flags(tuple(shared), values), *tail]
    if in_place or command not in IN_CONTAINER:
        return [command, *flags, *tail]
    inner = [flag for flag in flags if not flag.startswith(tuple(f"--{name}=" for name in BOTH))]
    return ["launch", *_launch_flags(INPUTS[command], values), command, *inner, *tail]


def secret_variables(command: str, values: Mapping[str, str]) -> dict[str, str]:
    """The secret inputs, as the variables of their options."""
    names = [one.name for one in INPUTS[command] if one.kind is Kind.SECRET and values.get(one.name)]
    return {option.variable: values[option.name] for option in OPTIONS if option.name in names}


def _targets(command: str, values: Mapping[str, str]) -> list[str]:
    name = next((one.name for one in INPUTS[command] if one.kind is Kind.TARGETS), "")
    if not name:
        return []
    targets = _words(name, values.get(name, ""))
    if not targets:
        wanted = "a suite such as ddp, or a path of tests" if name == "suite" else "a folder"
        raise UsageError(f"input {name} is empty: name {wanted}")
    if stray := next((target for target in targets if target.startswith("-")), None):
        raise UsageError(f"input {name}: {stray!r} is a flag")
    return targets


def _pytest_args(values: Mapping[str, str]) -> list[str]:
    words = _words("pytest-args", values.get("pytest-args", ""))
    return ["--", *words] if words else []


def _run_flags(one: Input, value: str) -> list[str]:
    if not value:
        return []
    match one.kind:
        case Kind.RUN:
            return [_flag(one, value)]
        case Kind.RUN_SWITCH:
            return _switch(one, value)
        case Kind.RUN_LINES:
            return _lines(one, value)
        case _:
            return []


def _launch_flags(inputs: tuple[Input, ...], values: Mapping[str, str]) -> list[str]:
    flags: list[str] = []
    for one in inputs:
        value = values.get(one.name, "")
        if not value:
            continue
        if one.kind is Kind.LAUNCH or (one.kind is Kind.RUN and one.name in BOTH):
            flags.append(_flag(one, value))
        elif one.kind is Kind.SWITCH:
            flags += _switch(one, value)
        elif one.kind is Kind.LINES:
            flags += _lines(one, value)
    return flags


def _switch(one: Input, value: str) -> list[str]:
    return [one.option] if is_true(one.name, value) else []


def _lines(one: Input, value: str) -> list[str]:
    return [_flag(one, line.strip()) for line in value.splitlines() if line.strip()]


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
