"""What a fork of a resident parent asks before it becomes a command: whether the run that was typed is to be one."""

from __future__ import annotations

from collections.abc import Sequence

import click

from disttest.cli.run import run_command
from disttest.cli.run_tests import seed_if_resident
from disttest.errors import DisttestError

_command = run_command(seed_if_resident)


def seed_of_fork(words: Sequence[str]) -> int | None:
    """The seed of a run that is to be a fork; None for any other one, or where something is wrong with what was typed.

    Args:
        words: ``run`` and its arguments.
    """
    split = words.index("--") if "--" in words else len(words)
    arguments, rest = list(words[1:split]), list(words[split + 1 :])
    try:
        seed: int | None = _command.main(arguments, prog_name="disttest run", obj=rest, standalone_mode=False)
    except (DisttestError, click.ClickException, click.Abort):
        return None
    return seed
