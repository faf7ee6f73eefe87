"""``disttest explain``: what went wrong in a stored run."""

from __future__ import annotations

import click


@click.command()
@click.argument("words", nargs=-1, metavar="[DIR] [TEST]")
def explain(words: tuple[str, ...]) -> None:
    """Tell the finding of every failed test of the last run here (or that in DIR), or of tests whose id contains TEST."""
    from disttest.cli.explanation import explain_run

    click.echo(explain_run(words))
