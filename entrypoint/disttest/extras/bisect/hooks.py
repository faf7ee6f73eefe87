"""The hooks of ``disttest bisect``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disttest.errors import UsageError
from disttest.hookspecs import hookimpl
from disttest.options.option import Option, rows_of
from disttest.options.values import COUNT, Type, path

if TYPE_CHECKING:
    import click


NAME = "bisect"
USUAL = Path("results-bisect")


def _chance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise UsageError(f"{text!r} is not a number above 0 and at most 1")
    return value


CHANCE = Type(form="RATE", parse=_chance)
_bisect = rows_of(NAME)

OPTIONS = (
    _bisect(
        "rate",
        CHANCE,
        "How often the test fails at a bad commit, from 0 to 1.",
        otherwise="measured at BAD",
        inputs=(),
    ),
    _bisect("confidence", CHANCE, "The probability of the answer that is enough.", default=0.97, inputs=()),
    _bisect("most", COUNT, "Runs after which the search gives up.", default=2000, inputs=()),
    _bisect(
        "prepare", path("FILE"), "Script for bash that prepares each commit, in its own tree.", inputs=()
    ),
)


@hookimpl
def disttest_addoptions() -> Sequence[Option]:
    """Add the options of the command."""
    return OPTIONS


@hookimpl
def disttest_commands_that_run() -> Sequence[str]:
    """Name its own command."""
    return (NAME,)


@hookimpl
def disttest_addcommands(group: click.Group) -> None:
    """Add ``disttest bisect``."""
    from disttest.extras.bisect.command import bisect

    group.add_command(bisect)
