"""``disttest diverge``: where two runs of a test have seen other numbers first."""

from __future__ import annotations

from pathlib import Path

import click

from disttest.errors import ExitCode, UsageError
from disttest.options.flags import RegistryCommand, flags
from disttest.reports.text import count, one_line
from disttest.sanitizers.values.divergence import compared, find_parting
from disttest.sanitizers.values.values_file import ValuesFile, pairs, read_recordings


@click.command(cls=RegistryCommand)
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@flags("diverge")
@click.pass_context
def diverge(
    context: click.Context, first: Path, second: Path, test: str | None, tolerance: float | None
) -> None:
    """Find the first call, module or parameter at which two runs part, test by test.

    A and B are results directories of runs with --sanitize values. Exit code 0: the same, 1: not the same.

    \b
    disttest diverge results-green results              this run against one that was good
    disttest diverge one four --tolerance 1e-5          world size 1 against 4: parameters and their gradients
    """
    text = test or ""
    found = [
        (one, other)
        for one, other in pairs(read_recordings(first), read_recordings(second))
        if text in one.nodeid or text in other.nodeid
    ]
    if not found:
        wanted = f" with {text!r} in its id" if text else ""
        raise UsageError(f"{first} and {second} have no test{wanted} in common")
    parted = [_tell(one, other, tolerance) for one, other in found]
    if any(parted):
        context.exit(ExitCode.FAILED)


def _tell(one: ValuesFile, other: ValuesFile, tolerance: float | None) -> bool:
    """Print what came of one test; whether it parts."""
    parting = find_parting(one, other, tolerance)
    names = one.nodeid if one.nodeid == other.nodeid else f"{one.nodeid} and {other.nodeid}"
    if parting is None:
        click.echo(f"same: {one_line(names)}: {count(compared(one, other), 'tensor')}")
        return False
    click.echo(f"differs: {one_line(names)}")
    click.echo(f"  rank {parting.rank}: {one_line(parting.message, 2000)}")
    click.echo(f"  {count(parting.same, 'tensor')} before it the same on this rank")
    return True
