"""Print where ``disttest diverge`` finds a difference between two runs."""

from __future__ import annotations

from pathlib import Path

import click

from disttest.errors import UsageError
from disttest.extras.sanitizers.values.divergence import compared, find_divergence
from disttest.extras.sanitizers.values.values_file import ValuesFile, pairs, read_recordings
from disttest.reports.text import count, one_line


def print_divergences(first: Path, second: Path, text: str, tolerance: float | None) -> bool:
    """Print the comparison of each test that both runs have. Return whether any test differs.

    Args:
        first: results directory of a run.
        second: results directory of the other run.
        text: part of the ids of the tests to compare.
        tolerance: relative tolerance of numbers; None: every bit counts.

    Raises:
        UsageError: the runs have no such test in common.
    """
    found = [
        (one, other)
        for one, other in pairs(read_recordings(first), read_recordings(second))
        if text in one.nodeid or text in other.nodeid
    ]
    if not found:
        wanted = f" with {text!r} in its id" if text else ""
        raise UsageError(f"{first} and {second} have no test{wanted} in common")
    diverged = [_print_one(one, other, tolerance) for one, other in found]
    return any(diverged)


def _print_one(one: ValuesFile, other: ValuesFile, tolerance: float | None) -> bool:
    """Print the comparison of one test. Return whether it differs."""
    divergence = find_divergence(one, other, tolerance)
    names = one.nodeid if one.nodeid == other.nodeid else f"{one.nodeid} and {other.nodeid}"
    if divergence is None:
        click.echo(f"same: {one_line(names)}: {count(compared(one, other), 'tensor')}")
        return False
    click.echo(f"differs: {one_line(names)}")
    click.echo(f"  rank {divergence.rank}: {one_line(divergence.message, 2000)}")
    click.echo(f"  {count(divergence.same, 'tensor')} before it the same on this rank")
    return True
