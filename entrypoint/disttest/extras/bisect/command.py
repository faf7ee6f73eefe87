"""``disttest bisect``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from disttest.cli.purposes import Purpose, serves
from disttest.options.flags import RegistryCommand, flags


@serves(Purpose.FAULTS)
@click.command(name="bisect", cls=RegistryCommand)
@click.argument("test")
@click.argument("good")
@click.argument("bad")
@flags("bisect")
@click.pass_obj
def bisect(pytest_args: Sequence[str], /, test: str, good: str, bad: str, **given: Any) -> int:
    """Find the first commit at which TEST fails, between the commits GOOD and BAD, also if it fails only now and then.

    Each commit is tested in a work tree of its own, as often as the failure rate demands. Exit code 0: found, 1: not decided.

    \b
    disttest bisect tests/test_step.py::test_sum v1.2 HEAD
    disttest bisect tests/test_step.py::test_sum v1.2 HEAD --prepare install.sh
    """
    from disttest.extras.bisect.command_run import run_bisect

    return run_bisect(test, good, bad, pytest_args, given)
