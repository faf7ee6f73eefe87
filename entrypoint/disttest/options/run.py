"""What a run was asked to do: flags and variables as one frozen record.

A flag wins over the variable, the variable over the default; an empty string means "not set", as GitHub passes it.
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
from disttest.planning.gpu_request import GpuShare
from disttest.plugin_manager import plugin_manager


class WorldSettings(Frozen):
    """What worlds and ranks need to know of the options of their run; it travels to them whole."""

    grace: float = default_of("grace")
    """Seconds the other ranks get to fail by themselves, once one has failed."""
    seed: int = default_of("seed")
    log_limit: int = default_of("log-limit")
    """Bytes kept of each rank's log of a test."""
    native_stacks: bool = default_of("native-stacks")
    """Whether py-spy is asked for the C frames of ranks that hang."""
    verdict: VerdictRule = default_of("verdict")
    """Whose rules judge tests that start their ranks by themselves."""
    ranks_collect: bool = False
    """Whether the ranks of a world collect its tests by themselves, as under a launcher, before they run any."""
    is_debugged: bool = False
    """Whether users may hold ranks, for example in a debugger: limits on what ranks do have no effect then."""
    plugin_options: dict[str, str] = msgspec.field(default_factory=dict)
    """Field of an option of a plugin -> its value as text, if it was given; ``Option.of`` reads it."""
    plugins: tuple[str, ...] = ()
    """Names and versions of the plugins of the run, which every process of it has."""
    cpu_steps: bool = False
    """Whether the journal tells what each world has cost, step by step."""

    def unless_debugged(self, limit_s: float) -> float:
        """A limit on what ranks do, or none where users may hold them."""
        return NO_LIMIT_S if self.is_debugged else limit_s


class RunOptions(WorldSettings):
    """What a run was asked to do."""

    world_sizes: tuple[int, ...] = default_of("world-sizes")
    """Empty: chosen by the machine."""
    backend: tuple[str, ...] = default_of("backend")
    """Empty: the best one for the device."""
    device: str = default_of("device")
    slots: int = default_of("slots")
    """0: as many as the machine has."""
    gpus: GpuShare = default_of("gpus")
    ranks_per_gpu: int = default_of("ranks-per-gpu")
    """How many ranks of a world may share a GPU. Only worlds with more ranks than the run has GPUs share any."""
    allow_busy_gpus: bool = default_of("allow-busy-gpus")
    """Take GPUs that processes of others use, too."""
    lease_dir: Path | None = None
    """None: the usual one."""
    timeout: float = default_of("timeout")
    """Seconds a test may take."""
    deadline: float = default_of("deadline")
    """Seconds the whole run may take; 0: no limit."""
    results: Path | None = None
    isolation: Isolation | None = None
    """None: warm where a test asks for ``world``, else fresh."""
    retries: int = default_of("retries")
    """How often a test that failed is tried again, each time in a new world."""
    infra_retries: int = default_of("infra-retries")
    """The same for an attempt that a broken machine has spoiled; counted apart."""
    flaky: FlakyRule = default_of("flaky")
    """How a test counts that passed only on a retry."""
    one_world: bool = default_of("one-world")
    """Whether tests of one shape run in one world, whatever their files."""
    world_letter: str = "w"
    """The names of worlds begin with it."""
    repeat: int = default_of("repeat")
    """How often each test is run."""
    foreign_marks: tuple[str, ...] = default_of("foreign-marks")
    """Folders, relative to pytest's root directory, in which ``world_size`` is not our mark."""
    secret_options: dict[str, str] = msgspec.field(default_factory=dict)
    """Field of a secret option of a plugin -> its value as text, if it was given. Worlds do not know these."""
    given: tuple[str, ...] = ()
    """Names of the fields that a flag or a variable has set, perhaps to their default."""

    def for_worlds(self) -> WorldSettings:
        """The part that worlds are told: nothing else, as the order of a rank may lie on the disk."""
        settings = msgspec.convert(self, WorldSettings, from_attributes=True)
        return msgspec.structs.replace(settings, plugins=plugin_manager().identity)


def resolve_options(
    flags: Mapping[str, str | None], *, environ: Mapping[str, str] | None = None
) -> RunOptions:
    """Parse flags (by field name; None or empty: not given) and the environment into options.

    Raises:
        UsageError: a value makes no sense; the message names the option or the variable.
    """
    values: dict[str, Any] = {}
    of_plugins: dict[str, str] = {}
    secret: dict[str, str] = {}
    for option, text, source in find_given(flags, environ):
        value = parse_given(option, text, source)
        if option in PLUGIN_OPTIONS:
            (secret if option.secret else of_plugins)[option.field] = text
        else:
            values[option.field] = value
    given = (*values, *of_plugins, *secret)
    return RunOptions(**values, given=given, plugin_options=of_plugins, secret_options=secret)


def parse_given(option: Option, text: str, source: str) -> Any:
    """The value of an option that was given.

    Raises:
        UsageError: it makes no sense; the message names where it stood.
    """
    try:
        return option.type.parse(text)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def by_command(flags: Mapping[str, Any], *, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The flags, with what the command gives where neither they nor the environment say anything."""
    variables = environment() if environ is None else environ
    rows = [option for option in RUN_OPTIONS if option.by_command]
    unsaid = [row for row in rows if not flags.get(row.field) and not variables.get(row.variable)]
    return {**flags, **{row.field: row.by_command for row in unsaid}}


def filled(flags: Mapping[str, str | None], results: Path) -> dict[str, str]:
    """The flags that have a value, and the results directory among them."""
    return {name: value for name, value in flags.items() if value} | {"results": str(results)}


def given_options(
    flags: Mapping[str, str | None], *, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Name -> text of the options that were given, by a flag or by a variable, but for secret ones; arguments as above."""
    return {option.name: text for option, text, _ in find_given(flags, environ) if not option.secret}


def find_given(
    flags: Mapping[str, str | None],
    environ: Mapping[str, str] | None = None,
    rows: Sequence[Option] = RUN_OPTIONS,
) -> Iterator[tuple[Option, str, str]]:
    """Each given option of these with its text and where that stood: its flag, or its variable; arguments as above."""
    variables = environment() if environ is None else environ
    for option in rows:
        flag, variable = flags.get(option.field) or "", variables.get(option.variable) or ""
        if option.secret and flag:  # what one place says takes nothing away from the other
            yield option, "\n".join(filter(None, (flag, variable))), option.flag
        elif flag or variable:
            yield option, flag or variable, option.flag if flag else option.variable
