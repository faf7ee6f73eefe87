"""Command ``disttest diverge``: find where two runs of a test first differ in their values."""

from __future__ import annotations

from pathlib import Path

import click

from disttest.cli.purposes import Purpose, serves
from disttest.errors import ExitCode
from disttest.options.flags import ShowingCommand, flags


@serves(Purpose.FAULTS)
@click.command(cls=ShowingCommand)
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@flags("diverge")
@click.pass_context
def diverge(
    context: click.Context, first: Path, second: Path, test: str | None, tolerance: float | None
) -> None:
    """Find the first call, module or parameter at which two runs differ, test by test.

    A and B are results directories of runs with --sanitize values. The exit code is 0 if all tests are the same, and 1
    if not.

    \b
    disttest diverge results-green results              this run against one that was good
    disttest diverge one four --tolerance 1e-5          world size 1 against 4: parameters and their gradients
    """
    from disttest.extras.sanitizers.values.divergence import print_divergences

    if print_divergences(first, second, test or "", tolerance):
        context.exit(ExitCode.FAILED)
