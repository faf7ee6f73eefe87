"""Command ``disttest chaos``: does a test keep its contract when a rank is lost?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from disttest.cli.purposes import Purpose, serves
from disttest.errors import UsageError
from disttest.extras.chaos.case import Fault, FaultKind
from disttest.options.flags import RegistryCommand
from disttest.options.flags import flags as flags_of
from disttest.options.values import Type

_DURING = "during"


def parse_fault(text: str) -> Fault:
    """Parse ``kill:1:5``: kind, rank, number of the call. ``kill:1:5:during`` injects the fault while the call runs.

    Raises:
        UsageError: the text is not a valid fault.
    """
    kind, *numbers = text.split(":")
    # The text is that of a test's id (`test_x[4xgloo-kill:1:5:during]`), so a report can be pasted into
    # --fault.
    during = numbers[2:] == [_DURING]
    if kind not in tuple(FaultKind) or len(numbers) != 2 + during or not all(map(str.isdecimal, numbers[:2])):
        raise UsageError(
            f"{text!r} is not a fault; give KIND:RANK:CALL, such as kill:1:5, with one of the kinds {_KINDS}"
        )
    return Fault(kind=FaultKind(kind), rank=int(numbers[0]), call=int(numbers[1]), during=during)


def parse_kinds(text: str) -> tuple[FaultKind, ...]:
    """Parse a list such as ``kill,stop``.

    Raises:
        UsageError: a kind is unknown.
    """
    words = [word.strip() for word in text.split(",")]
    if unknown := [word for word in words if word not in tuple(FaultKind)]:
        raise UsageError(f"{unknown[0]!r} is not a kind of fault; choose from {_KINDS}")
    return tuple(kind for kind in FaultKind if kind in words)


_KINDS = ", ".join(FaultKind)
FAULT = Type(form="KIND:RANK:CALL[:during]", parse=parse_fault)
KINDS = Type(form="KIND,…", parse=parse_kinds)


@serves(Purpose.FAULTS)
@click.command(name="chaos", cls=RegistryCommand)
@click.argument("targets", nargs=-1, required=True, metavar="TEST…")
@flags_of("chaos", fault=FAULT, kinds=KINDS)
@click.pass_obj
def chaos(pytest_args: Sequence[str], /, targets: tuple[str, ...], **given: Any) -> int:
    """Inject a fault into one call of one rank, and check that the others notice or recover as the test promises.

    Each test first runs without faults, and its calls are counted; then it runs once for each rank, call and kind of fault.
    """
    from disttest.extras.chaos.command_run import run_chaos

    return run_chaos(targets, pytest_args, given)
