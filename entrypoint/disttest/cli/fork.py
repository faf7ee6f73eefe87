"""What a fork of a resident parent asks before it becomes a command: whether the run that was typed is to be one."""

from __future__ import annotations

from collections.abc import Sequence

import click

from disttest.cli.main import command, parted
from disttest.cli.run import run_command
from disttest.cli.run_tests import terms_if_resident
from disttest.errors import DisttestError
from disttest.resident.terms import ForkTerms

_command = run_command(terms_if_resident)


def terms_of_fork(words: Sequence[str]) -> ForkTerms | None:
    """What a run that is to be a fork asks; None for any other command, or where something is wrong with what was typed.

    Args:
        words: of the command line.
    """
    ours, rest = parted(words)
    name, *arguments = command.spelled_out(ours) or [""]
    if name != "run":
        return None
    try:
        terms: ForkTerms | None = _command.main(
            arguments, prog_name="disttest run", obj=rest, standalone_mode=False
        )
    except (DisttestError, click.ClickException, click.Abort):
        return None
    return terms
