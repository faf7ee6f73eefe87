"""The purposes by which the help of ``disttest`` groups its commands."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import click

C = TypeVar("C", bound=click.Command)


class Purpose(StrEnum):
    """A purpose, in the order of the help; ``OTHER`` is for commands of plugins that name none."""

    RUN = "Run tests"
    RESULTS = "Read results"
    FAULTS = "Find what green tests hide"
    MACHINES = "Machines and clusters"
    DIVIDE = "Divide tests over runners"
    SETUP = "Set up"
    OTHER = "Further commands"


PURPOSES: dict[str | None, Purpose] = {}
"""Name of a command -> its purpose."""


def serves(purpose: Purpose) -> Callable[[C], C]:
    """Give a command its purpose; put it above ``click.command``."""

    def mark(command: C) -> C:
        PURPOSES[command.name] = purpose
        return command

    return mark
