"""Command ``disttest replay``: run one rank of a recorded test, alone, in this terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from disttest.cli.purposes import Purpose, serves
from disttest.options.flags import RegistryCommand, flags, pytest_word


@serves(Purpose.FAULTS)
@click.command(cls=RegistryCommand)
@click.argument("words", nargs=-1, required=True, metavar="[RESULTS] TEST")
@flags("replay")
@pytest_word("--pdb")
@click.pass_obj
def replay(pytest_args: Sequence[str], /, words: tuple[str, ...], rank: int) -> None:
    """Run one rank of a recorded test alone, without peers or a cluster: it receives the recorded data.

    \b
    disttest record tests/test_step.py           record a run; each rank's file is next to its log
    disttest replay test_step --rank 3           run rank 3 of it in this terminal, as recorded
    disttest replay test_step --rank 3 --pdb     stop where it fails or hangs; breakpoint() stops, too

    RESULTS is the directory of the run (default: the newest one here), and TEST is a part of the test's id. The exit
    code is 0 if the rank did what was recorded, even if that is a failure, and 1 if not.
    """
    from disttest.extras.replay.command_run import run_replay

    sys.exit(run_replay(words, rank, pytest_args))  # noqa: TID251
