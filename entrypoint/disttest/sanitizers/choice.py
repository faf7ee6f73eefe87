"""Which sanitizers a run wants: the value of ``--sanitize``."""

from __future__ import annotations

from collections.abc import Iterable

from disttest.errors import UsageError
from disttest.model import Frozen

NAMES = ("order",)
OFF = "off"
_WARN = "warn"
FORM = f"{'|'.join(NAMES)}[:{_WARN}][,…]|{OFF}"


class Chosen(Frozen):
    """A sanitizer that is on."""

    name: str
    fails: bool
    """Whether what it finds fails the test; else it is told beside the verdict."""


def parse_chosen(text: str) -> tuple[Chosen, ...]:
    """``order``, ``order:warn``, several of them with commas, or ``off``.

    Raises:
        UsageError: there is no such sanitizer.
    """
    words = [word.strip() for word in text.split(",")]
    if words == [OFF]:
        return ()
    by_name = {chosen.name: chosen for chosen in map(_parse, words)}
    return tuple(by_name[name] for name in NAMES if name in by_name)


def _parse(word: str) -> Chosen:
    name, colon, level = word.partition(":")
    if name not in NAMES or level != (_WARN if colon else ""):
        raise UsageError(
            f"{word!r} is not one of {', '.join((*NAMES, *(f'{each}:{_WARN}' for each in NAMES), OFF))}"
        )
    return Chosen(name=name, fails=not level)


def show_chosen(chosen: Iterable[Chosen]) -> str:
    """The reverse."""
    return ",".join(each.name if each.fails else f"{each.name}:{_WARN}" for each in chosen) or OFF
