"""In a fork of a resident parent, decide from the command line whether it may become that command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from disttest.cli.commands import run_command
from disttest.cli.main import command, parted
from disttest.cli.run_request import read_request
from disttest.errors import DisttestError
from disttest.extras.resident.messages import ForkTerms
from disttest.extras.resident.parents import terms_of, wants_resident


def _terms_if_resident(
    targets: tuple[str, ...], pytest_args: Sequence[str], progress: str, given: Mapping[str, Any]
) -> ForkTerms | None:
    """Return the requirements of a run that is to be a fork; None for any other run.

    Raises:
        DisttestError: the request is invalid.
    """
    request = read_request(targets, pytest_args, progress, given)
    return terms_of(request) if wants_resident(request) and not request.needs_new_processes else None


_command = run_command(_terms_if_resident)


def terms_of_fork(words: Sequence[str]) -> ForkTerms | None:
    """Return the requirements of a run; None for any other command, or if the command line is wrong.

    Args:
        words: words of the command line.
    """
    ours, rest = parted(words)
    name, *arguments = command.spelled_out(ours) or [""]
    if name != "run":
        return None
    try:
        # click would print an error and exit. That is left to the command, once this fork has refused.
        terms: ForkTerms | None = _command.main(
            arguments, prog_name="disttest run", obj=rest, standalone_mode=False
        )
    except (DisttestError, click.ClickException, click.Abort):
        return None
    return terms
