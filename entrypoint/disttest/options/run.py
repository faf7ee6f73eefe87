"""The options of a run: flags and variables as one frozen record.

A flag overrides the variable, and the variable the default. An empty string means "not set", as CI services pass it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from disttest.errors import UsageError
from disttest.limits import NO_LIMIT_S
from disttest.model import FlakyRule, Frozen, Isolation, VerdictRule
from disttest.options.environment import environment
from disttest.options.option import Option
from disttest.options.registry import PLUGIN_OPTIONS, RUN_OPTIONS, default_of
from disttest.options.values import GpuShare
from disttest.plugin_manager import plugin_manager


class WorldSettings(Frozen):
    """The options of a run that worlds and ranks need. The record is sent to them as a whole."""

    # One record: on nodes of a cluster, a field that was copied individually had been forgotten.

    grace: float = default_of("grace")
    """Seconds for the other ranks to fail on their own after one has failed."""
    seed: int = default_of("seed")
    log_limit: int = default_of("log-limit")
    """Bytes kept of each rank's log of a test."""
    native_stacks: bool = default_of("native-stacks")
    """Whether py-spy reads the C frames of hanging ranks."""
    verdict: VerdictRule = default_of("verdict")
    """Rules that judge tests which start their own ranks."""
    ranks_collect: bool = False
    """Whether the ranks of a world collect its tests, as under a launcher, before they run any."""
    is_debugged: bool = False
    """Whether users may hold ranks, for example in a debugger, which suspends limits of ranks."""
    plugin_options: dict[str, str] = msgspec.field(default_factory=dict)
    """Field of a plugin's option, mapped to its value as text if it was given; ``Option.of`` reads it."""
    plugins: tuple[str, ...] = ()
    """Names and versions of the plugins of the run, which every process must have."""

    def unless_debugged(self, limit_s: float) -> float:
        """Return a limit of ranks, or no limit if users may hold them."""
        return NO_LIMIT_S if self.is_debugged else limit_s


class RunOptions(WorldSettings):
    """The options of a run."""

    world_sizes: tuple[int, ...] = default_of("world-sizes")
    """Empty: chosen for the machine."""
    backend: tuple[str, ...] = default_of("backend")
    """Empty: the best one for the device."""
    device: str = default_of("device")
    slots: int = default_of("slots")
    """0: as many as the machine has."""
    gpus: GpuShare = default_of("gpus")
    ranks_per_gpu: int = default_of("ranks-per-gpu")
    """Number of ranks of a world that may share a GPU. Only worlds with more ranks than GPUs share any."""
    timeout: float = default_of("timeout")
    """Time limit of a test in seconds."""
    deadline: float = default_of("deadline")
    """Time limit of the whole run in seconds; 0: none."""
    results: Path | None = None
    isolation: Isolation | None = None
    """None: warm for tests that request ``world``, otherwise fresh."""
    retries: int = default_of("retries")
    """Number of retries of a failed test, each in a new world."""
    infra_retries: int = default_of("infra-retries")
    """Number of retries after an attempt that a broken machine has spoiled, counted separately."""
    flaky: FlakyRule = default_of("flaky")
    """Treatment of a test that passed only on a retry."""
    one_world: bool = default_of("one-world")
    """Whether tests of one shape run in one world, across files."""
    world_letter: str = "w"
    """Prefix of the names of worlds."""
    repeat: int = default_of("repeat")
    """Number of times that each test is run."""
    foreign_marks: tuple[str, ...] = default_of("foreign-marks")
    """Folders, relative to pytest's root directory, in which ``world_size`` is another harness's mark."""
    secret_options: dict[str, str] = msgspec.field(default_factory=dict)
    """Field of a plugin's secret option, mapped to its value as text if it was given. Worlds do not receive it."""
    given: tuple[str, ...] = ()
    """Names of the fields that a flag or a variable has set, even to their default."""

    def for_worlds(self) -> WorldSettings:
        """Return the part for worlds."""
        # It excludes everything else, because the order of a rank may be written to disk.
        settings = msgspec.convert(self, WorldSettings, from_attributes=True)
        return msgspec.structs.replace(settings, plugins=plugin_manager().identity)


def resolve_options(
    flags: Mapping[str, str | None], *, environ: Mapping[str, str] | None = None
) -> RunOptions:
    """Parse flags (by field name; None or empty: not given) and the environment.

    Raises:
        UsageError: a value is invalid; the message names the option or the variable.
    """
    values: dict[str, Any] = {}
    of_plugins: dict[str, str] = {}
    secret: dict[str, str] = {}
    for option, text, source in find_given(flags, environ):
        # A plugin's option is parsed for its errors only: the text travels, and `Option.of` parses it in each
        # process.
        value = parse_given(option, text, source)
        if option in PLUGIN_OPTIONS:
            (secret if option.secret else of_plugins)[option.field] = text
        else:
            values[option.field] = value
    given = (*values, *of_plugins, *secret)
    return RunOptions(**values, given=given, plugin_options=of_plugins, secret_options=secret)


def parse_given(option: Option, text: str, source: str) -> Any:
    """Parse the value of an option that was given.

    Raises:
        UsageError: it is invalid; the message names its source.
    """
    try:
        return option.type.parse(text)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def by_command(flags: Mapping[str, Any], *, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the flags with the command's defaults where neither they nor the environment set a value."""
    variables = environment() if environ is None else environ
    rows = [option for option in RUN_OPTIONS if option.by_command]
    unsaid = [row for row in rows if not flags.get(row.field) and not variables.get(row.variable)]
    return {**flags, **{row.field: row.by_command for row in unsaid}}


def filled(flags: Mapping[str, str | None], results: Path) -> dict[str, str]:
    """Return the flags that have a value, with the results directory."""
    return {name: value for name, value in flags.items() if value} | {"results": str(results)}


def given_options(
    flags: Mapping[str, str | None], *, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return name and text of the options given by a flag or variable, except secret ones; arguments as above."""
    return {option.name: text for option, text, _ in find_given(flags, environ) if not option.secret}


def find_given(
    flags: Mapping[str, str | None],
    environ: Mapping[str, str] | None = None,
    rows: Sequence[Option] = RUN_OPTIONS,
) -> Iterator[tuple[Option, str, str]]:
    """Yield each given option with its text and its source: flag or variable; arguments as above."""
    variables = environment() if environ is None else environ
    for option in rows:
        flag, variable = flags.get(option.field) or "", variables.get(option.variable) or ""
        if option.secret and flag:  # the values of both sources count
            yield option, "\n".join(filter(None, (flag, variable))), option.flag
        elif flag or variable:
            yield option, flag or variable, option.flag if flag else option.variable
