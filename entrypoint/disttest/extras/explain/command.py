"""The command ``disttest explain``."""

from __future__ import annotations

import click

from disttest.cli.purposes import Purpose, serves
from disttest.options.flags import ShowingCommand


@serves(Purpose.RESULTS)
@click.command(cls=ShowingCommand)
@click.argument("words", nargs=-1, metavar="[DIR] [TEST]")
@click.pass_context
def explain(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the finding of every failed test of the last run here (or that in DIR), or of tests whose id contains TEST.

    The exit code is that of the run.
    """
    from disttest.extras.explain.explanation import explain_run

    explanation = explain_run(words)
    click.echo(explanation.text)
    context.exit(explanation.exit_code)
