"""Every option of a run, declared once: name, type, default, help. The only reader of the environment.

The command and the pytest plugin make their own flags from this table (``--timeout`` there,
``--disttest-timeout`` here), and each option is also a variable (``DISTTEST_TIMEOUT``). A flag wins over
the variable, the variable over the default; an empty string means "not set", as GitHub passes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from disttest.errors import UsageError
from disttest.model import FlakyRule, Frozen, Isolation, VerdictRule
from disttest.planning.share import GpuShare, parse_share

LARGEST_WORLD = 1024
"""A world is the processes of one machine; a larger one is a slip of the keyboard."""

AUTO = "auto"


class RunOptions(Frozen):
    """What a run was asked to do."""

    world_sizes: tuple[int, ...] = ()
    """Empty: chosen by the machine."""
    backend: tuple[str, ...] = ()
    """Empty: the best one for the device."""
    device: str = AUTO
    slots: int = 0
    """0: as many as the machine has."""
    gpus: GpuShare = GpuShare()
    share: bool = False
    """Take GPUs that processes of others use, too."""
    lease_dir: Path | None = None
    """None: the usual one."""
    timeout: float = 300.0
    """Seconds a test may take."""
    deadline: float = 0.0
    """Seconds the whole run may take; 0: no limit."""
    grace: float = 0.3
    """Seconds the other ranks get to fail by themselves, once one has failed."""
    results: Path | None = None
    isolation: Isolation | None = None
    """None: warm where a test asks for ``world``, else fresh."""
    seed: int = 0
    log_limit: int = 8 * 1024 * 1024
    """Bytes kept of each rank's log of a test."""
    native_stacks: bool = False
    """Whether py-spy is asked for the C frames of ranks that hang."""
    verdict: VerdictRule = VerdictRule.STRICT
    """Whose rules judge tests that start their ranks by themselves."""
    retries: int = 0
    """How often a test that failed is tried again, each time in a new world."""
    infra_retries: int = 0
    """The same for an attempt that a broken machine has spoiled; counted apart."""
    flaky: FlakyRule = FlakyRule.PASS
    """What a test is worth that passed only when it was tried again."""
    mask: tuple[str, ...] = ()
    """Values that reach nothing that is kept or shown."""


class Option(NamedTuple):
    """One row of the table."""

    name: str
    parse: Callable[[str], Any]
    metavar: str
    help: str
    switch: bool = False
    """On the command line it is a flag without a value."""
    secret: bool = False
    """Its value stands on no command line of a child and in no record; it may be given more than once."""

    @property
    def field(self) -> str:
        """Name of the field of :class:`RunOptions`."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return f"DISTTEST_{self.field.upper()}"


def parse_world_size(text: str) -> int:
    """A world size: a whole number of ranks, from 1.

    Raises:
        UsageError: it is not one.
    """
    if not re.fullmatch(r"[0-9]+", text.strip()):
        raise UsageError(f"world size {text!r} is not a whole number from 1 to {LARGEST_WORLD}")
    return check_world_size(int(text))


def check_world_size(size: object) -> int:
    """The size, if it can be one.

    Raises:
        UsageError: it can not.
    """
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST_WORLD:
        raise UsageError(f"world size {size!r} is not a whole number from 1 to {LARGEST_WORLD}")
    return size


def _world_sizes(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(parse_world_size(part) for part in text.split(",")))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    return () if names == (AUTO,) else names


def check_seconds(value: object) -> float:
    """A positive number of seconds.

    Raises:
        UsageError: it is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise UsageError(f"{value!r} is not a number of seconds above 0")
    return float(value)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise UsageError(f"{text!r} is not a number of seconds above 0")
    return value


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text.strip()) or int(text) < 1:
        raise UsageError(f"{text!r} is not a whole number from 1")
    return int(text)


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text.strip()):
        raise UsageError(f"{text!r} is not a whole number")
    return int(text)


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise UsageError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return parse


def _isolation(text: str) -> Isolation | None:
    choice = _one_of(AUTO, *Isolation)(text)
    return None if choice == AUTO else Isolation(choice)


def _values(text: str) -> tuple[str, ...]:
    return tuple(line for line in text.splitlines() if line.strip())


def _flaky(text: str) -> FlakyRule:
    return FlakyRule(_one_of(*FlakyRule)(text))


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"{text!r} is not true or false")
    return text.lower() == "true"


def _verdict(text: str) -> VerdictRule:
    return VerdictRule(_one_of(*VerdictRule)(text))


_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def parse_bytes(text: str) -> int:
    """A size in bytes, from ``64k``, ``8m`` or ``1g``.

    Raises:
        UsageError: it is not one.
    """
    match = re.fullmatch(r"([0-9]+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise UsageError(f"{text!r} is not a size such as 64k or 8m")
    return int(match[1]) * _UNITS[match[2]]


OPTIONS = (
    Option(
        "world-sizes", _world_sizes, "N[,N…]", "World sizes to run, instead of those that fit the machine."
    ),
    Option(
        "backend",
        _names,
        "NAME[,NAME…]",
        "Backends to run: gloo, nccl, … (default: the best for the device).",
    ),
    Option(
        "device", _one_of(AUTO, "cpu", "cuda"), "auto|cpu|cuda", "Where ranks compute (default: GPUs if any)."
    ),
    Option("slots", _count, "N", "How many slots to use: GPUs, or shares of the CPU (default: all)."),
    Option(
        "gpus",
        parse_share,
        "CHOICE",
        "GPUs to take: auto, all, none, a count, UUIDs, or device=INDEX (default: auto).",
    ),
    Option("share", _switch, "true|false", "Take GPUs that processes of others use, too.", switch=True),
    Option("lease-dir", Path, "DIR", "Folder in which the runs of this host lease GPUs."),
    Option("timeout", _seconds, "SECONDS", "Time limit of a test without a timeout mark (default: 300)."),
    Option("deadline", _seconds, "SECONDS", "Time limit of the whole run (default: none)."),
    Option(
        "grace",
        _seconds,
        "SECONDS",
        "Time for other ranks to fail by themselves, once one has (default: 0.3).",
    ),
    Option("results", Path, "DIR", "Directory for reports, journal and logs."),
    Option(
        "isolation", _isolation, "auto|fresh|warm", "New processes for each test, or reuse (default: auto)."
    ),
    Option("seed", _whole, "N", "Mixed into the seed that each test starts with (default: 0)."),
    Option(
        "log-limit",
        parse_bytes,
        "SIZE",
        "How much of each rank's log is kept, such as 64k or 8m (default: 8m).",
    ),
    Option(
        "native-stacks",
        _switch,
        "true|false",
        "Log C frames of hanging ranks too, by py-spy, which needs ptrace (default: off).",
    ),
    Option("verdict", _verdict, "strict|torch", "Rules for torch's own test classes (default: strict)."),
    Option("retries", _whole, "N", "How often a failed test is tried again in a new world (default: 0)."),
    Option(
        "infra-retries",
        _whole,
        "N",
        "The same for attempts that a broken machine has spoiled (default: 0).",
    ),
    Option(
        "flaky", _flaky, "pass|fail", "What a test is worth that passed when tried again (default: pass)."
    ),
    Option(
        "mask",
        _values,
        "VALUE",
        "Hide this value in logs and reports; once for each, or one a line.",
        secret=True,
    ),
)


def resolve_options(
    flags: Mapping[str, str | None], *, environ: Mapping[str, str] | None = None
) -> RunOptions:
    """Parse flags (by field name; None or empty: not given) and the environment into options.

    Raises:
        UsageError: a value makes no sense; the message names the option or the variable.
    """
    values = {}
    for option, text, source in _given(flags, os.environ if environ is None else environ):  # noqa: TID251
        try:
            values[option.field] = option.parse(text)
        except UsageError as error:
            raise UsageError(f"{source}: {error}") from None
    return RunOptions(**values)


def given_options(
    flags: Mapping[str, str | None], *, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Name -> text of the options that were given, by a flag or by a variable, but for secret ones; arguments as above."""
    given = _given(flags, os.environ if environ is None else environ)  # noqa: TID251
    return {option.name: text for option, text, _ in given if not option.secret}


def _given(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> Iterator[tuple[Option, str, str]]:
    """Each given option with its text and where that stood."""
    for option in OPTIONS:
        flag, variable = flags.get(option.field) or "", environ.get(option.variable) or ""
        if option.secret and flag:  # what one place says takes nothing away from the other
            yield option, "\n".join(filter(None, (flag, variable))), f"--{option.name}"
        elif flag or variable:
            yield option, flag or variable, f"--{option.name}" if flag else option.variable


class Probe(Frozen):
    """How devices are asked and proved. Anything else than this is for the tests of disttest itself."""

    library: str = ""
    """Path of the NVML library; found by the dynamic linker unless given."""
    compute: str = "cuda"
    """Where the preflight does its work."""
    worker: str = ""
    """Module of the preflight's workers."""


def read_probe(environ: Mapping[str, str] | None = None) -> Probe:
    """The probe that ``DISTTEST_PROBE`` describes, as JSON."""
    text = (environment() if environ is None else environ).get("DISTTEST_PROBE")
    return msgspec.json.decode(text, type=Probe) if text else Probe()


def environment() -> Mapping[str, str]:
    """The variables of this process, for what is no option of a run: the engine, the runner's job."""
    return dict(os.environ)  # noqa: TID251
