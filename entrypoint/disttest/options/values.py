"""The types of option values: parsing, and the form of the default; requests for GPUs. Pure."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from disttest.errors import UsageError
from disttest.model import Frozen, Isolation
from disttest.plugin_manager import plugin_manager

_NAME = re.compile(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+")


class GpuShare(Frozen):
    """A request for GPUs. ``disttest launch --gpus`` accepts the same words."""

    required: bool = False
    """Whether a machine without GPUs is an error. Otherwise the run uses the CPU."""
    none: bool = False
    """Whether to run on the CPU even if the machine has GPUs."""
    count: int = 0
    """Number of GPUs; 0 for all that are named, or that the machine has."""
    names: tuple[str, ...] = ()
    """Indices and UUIDs, or prefixes of UUIDs; empty for any."""


def parse_share(text: str) -> GpuShare:
    """Parse ``auto``, ``all``, ``none``, ``2``, ``GPU-8f2e,GPU-91aa`` or ``device=0,3``.

    Raises:
        UsageError: it is none of these.
    """
    text = text.strip()
    match text.lower():
        case "auto":
            return GpuShare()
        case "all":
            return GpuShare(required=True)
        case "none":
            return GpuShare(none=True)
    # Not `isdigit()`, which accepts superscripts, and not `int()` alone, which accepts "1_000" and digits of
    # other scripts.
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text):
        return GpuShare(required=True, count=int(text))
    names = tuple(name.strip() for name in text.removeprefix("device=").split(","))
    if not all(map(_NAME.fullmatch, names)) or text.isdigit():
        raise UsageError(f"{text!r} is not auto, all, none, a count from 1, device=INDEX or UUIDs of GPUs")
    return GpuShare(required=True, names=names)


LARGEST_WORLD = 1024
"""Largest size of a world, which is on one machine. A larger number is a typing error."""
MOST_SLOTS = 10_000
"""Largest number of slots, each of which is an object in memory."""

AUTO = "auto"
_LAST_PORT = 65535
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


class Type(Frozen):
    """A type of values."""

    form: str
    """Placeholder of a value in help and docs: ``SECONDS``, ``auto|cpu|cuda``."""
    parse: Callable[[str], Any] = str
    """Converts text to a value; raises :class:`UsageError`."""
    show: Callable[[Any], str] = str
    """Converts a value to text, for the default."""
    choices: tuple[str, ...] = ()
    """All values, if they can be listed."""
    bare: str = ""
    """The value of a flag without a value; empty if it needs one."""
    follows: Callable[[str], bool] = lambda _: False
    """Whether a word is the value of the bare flag in front of it."""
    provided: Callable[[], Iterable[str]] = tuple
    """Returns the forms of values that plugins add; called only when the type is shown."""

    @property
    def shown_form(self) -> str:
        """Placeholder including the values of plugins."""
        return "|".join((self.form, *self.provided()))

    @property
    def shown_choices(self) -> tuple[str, ...]:
        """Choices including the values of plugins."""
        return (*self.choices, *self.provided()) if self.choices else ()


def parse_world_size(text: str) -> int:
    """Parse a world size: a whole number of ranks, from 1.

    Raises:
        UsageError: it is not one.
    """
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        raise UsageError(f"world size {text!r} is not a whole number from 1 to {LARGEST_WORLD}")
    return check_world_size(int(text))


def check_world_size(size: object) -> int:
    """Return the size if it is valid.

    Raises:
        UsageError: it is not.
    """
    # bool is a subclass of int: a mark with True would be a world of one rank.
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST_WORLD:
        raise UsageError(f"world size {size!r} is not a whole number from 1 to {LARGEST_WORLD}")
    return size


def check_seconds(value: object) -> float:
    """Return a positive number of seconds.

    Raises:
        UsageError: it is not one.
    """
    # Not `math.inf`: an int may be above the largest float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise UsageError(f"{value!r} is not a number of seconds above 0")
    return float(value)


def parse_bytes(text: str) -> int:
    """Parse a size in bytes, from ``64k``, ``8m`` or ``1g``.

    Raises:
        UsageError: it is not one.
    """
    match = re.fullmatch(r"([0-9]{1,15})\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise UsageError(f"{text!r} is not a size such as 64k or 8m")
    return int(match[1]) * _UNITS[match[2]]


def _show_bytes(size: int) -> str:
    unit = next(unit for unit in ("g", "m", "k", "") if size % _UNITS[unit] == 0)
    return f"{size // _UNITS[unit]}{unit}"


def _world_sizes(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(parse_world_size(part) for part in text.split(",")))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    return () if names == (AUTO,) else names


def _modules(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"{name!r} is not the name of a module, such as transformers or scipy.stats")
    return names


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        # NaN fails every comparison, so callers report it like any number out of range.
        return math.nan


def _seconds(text: str) -> float:
    if not 0 < (value := _number(text)) < math.inf:
        raise UsageError(f"{text!r} is not a number of seconds above 0")
    return value


def _seconds_or_none(text: str) -> float:
    if _number(text) == 0:
        return 0.0
    try:
        return _seconds(text)
    except UsageError:
        raise UsageError(f"{text!r} is not a number of seconds; 0 means no limit") from None


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()) or not 1 <= int(text) <= MOST_SLOTS:
        raise UsageError(f"{text!r} is not a whole number from 1 to {MOST_SLOTS}")
    return int(text)


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
        raise UsageError(f"{text!r} is not a whole number")
    return int(text)


def _port(text: str) -> int:
    if not 1 <= (value := _whole(text)) <= _LAST_PORT:
        raise UsageError(f"{text!r} is not a port from 1 to {_LAST_PORT}")
    return value


def _ratio(text: str) -> float:
    if not 0 <= (value := _number(text)) <= 1:
        raise UsageError(f"{text!r} is not a number between 0 and 1")
    return value


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"{text!r} is not true or false")
    return text.lower() == "true"


def _values(text: str) -> tuple[str, ...]:
    return tuple(line for line in text.splitlines() if line.strip())


def _isolation(text: str) -> Isolation | None:
    return None if text == AUTO else Isolation(text)


def text(form: str) -> Type:
    """Return the type of any text."""
    return Type(form=form)


def path(form: str) -> Type:
    """Return the type of paths."""
    return Type(form=form, parse=Path)


def one_of(*choices: str, make: Callable[[str], Any] = str) -> Type:
    """Return the type of these choices; ``make`` converts the text."""

    def parse(text: str) -> Any:
        if text not in choices:
            raise UsageError(f"{text!r} is not one of {', '.join(choices)}")
        return make(text)

    return Type(form="|".join(choices), parse=parse, choices=choices)


def devices(*known: str) -> Type:
    """Return the type of devices: these, or one that a plugin provides."""

    def parse(text: str) -> str:
        if text in known or check_provided(text):
            return text
        raise UsageError(f"{text!r} is not one of {', '.join((*known, *_provided_devices()))}")

    return Type(form="|".join(known), parse=parse, choices=known, provided=_provided_devices)


def check_provided(device: str) -> bool:
    """Return whether a plugin provides this device.

    Raises:
        UsageError: the value has a plugin's device in an invalid form.
    """
    name = device.partition(":")[0]
    for form, check in _provided_devices().items():
        if form.partition(":")[0] == name:
            check(device)
            return True
    return False


def _provided_devices() -> Mapping[str, Any]:
    return plugin_manager().mapping("disttest_devices", object)


def member_of(kind: type[StrEnum]) -> Type:
    """Return the type of an enumeration's members, by value."""
    return one_of(*kind, make=kind)


COUNT = Type(form="N", parse=_count)
"""A whole number from 1."""
WHOLE = Type(form="N", parse=_whole)
"""A whole number from 0."""
PORT = Type(form="PORT", parse=_port)
SECONDS = Type(form="SECONDS", parse=_seconds, show="{:g}".format)
SECONDS_OR_NONE = Type(form="SECONDS", parse=_seconds_or_none, show="{:g}".format)
"""A time limit; 0 means none."""
RATIO = Type(form="0…1", parse=_ratio, show="{:g}".format)
BYTES = Type(form="SIZE", parse=parse_bytes, show=_show_bytes)
SWITCH = Type(
    form="true|false",
    parse=_switch,
    choices=("true", "false"),
    bare="true",
    follows=lambda word: word.lower() in ("true", "false"),
)
WORLD_SIZES = Type(form="N[,N…]", parse=_world_sizes)
NAMES = Type(form="NAME[,NAME…]", parse=_names)
MODULES = Type(form="NAME[,NAME…]", parse=_modules)
ISOLATION = one_of(AUTO, *Isolation, make=_isolation)
LINES = Type(form="VALUE", parse=_values)


def spell_out(words: Sequence[str], switches: Mapping[str, Type]) -> list[str]:
    """Return the words of a command line with the value of each flag that needs none in the same word."""
    spelled: list[str] = []
    for word in words:
        # The word behind a switch may be a path of tests, so only known values are taken as its value.
        if spelled and spelled[-1] in switches and switches[spelled[-1]].follows(word):
            spelled[-1] += f"={word}"
        else:
            spelled.append(word)
    return [f"{word}={switches[word].bare}" if word in switches else word for word in spelled]
