"""What a fork of a resident parent asks before it becomes a command: whether the run that was typed is to be one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from disttest.cli.main import command, parted
from disttest.cli.run import run_command
from disttest.cli.run_tests import read_request
from disttest.errors import DisttestError
from disttest.extras.resident.parents import terms_of, wants_resident
from disttest.extras.resident.terms import ForkTerms


def _terms_if_resident(
    targets: tuple[str, ...], pytest_args: Sequence[str], progress: str, given: Mapping[str, Any]
) -> ForkTerms | None:
    """What a run that is to be a fork asks of its resident parent; None for one that is not to be.

    Raises:
        DisttestError: it cannot be done as it was asked.
    """
    request = read_request(targets, pytest_args, progress, given)
    return terms_of(request) if wants_resident(request) and not request.needs_new_processes else None


_command = run_command(_terms_if_resident)


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
