"""The purposes by which the help of ``disttest`` groups its commands."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import click

C = TypeVar("C", bound=click.Command)


class Purpose(StrEnum):
    """A purpose, in the order of the help."""

    RUN = "Run tests"
    RESULTS = "Read results"
    FAULTS = "Find what green tests hide"
    MACHINES = "Machines and clusters"
    DIVIDE = "Divide tests over runners"
    SETUP = "Set up"
    OTHER = "Further commands"
    """Commands of plugins that name no purpose."""


_PURPOSES: dict[str, Purpose] = {}
"""Name of a command, mapped to its purpose."""


def serves(purpose: Purpose) -> Callable[[C], C]:
    """Set a command's purpose. Put it above ``click.command``."""

    def mark(command: C) -> C:
        _PURPOSES[command.name or ""] = purpose
        return command

    return mark


def purpose_of(command: click.Command) -> Purpose:
    """Return the purpose of a command."""
    return _PURPOSES.get(command.name or "", Purpose.OTHER)
