"""The command ``disttest explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from disttest.cli.purposes import Purpose, serves
from disttest.extras.explain.hooks import TEXT
from disttest.extras.explain.message_page import section_named
from disttest.options.flags import ShowingCommand, flags


@serves(Purpose.RESULTS)
@click.command(cls=ShowingCommand)
@click.argument("words", nargs=-1, metavar="[DIR] [TEST] | ID")
@flags("explain")
@click.pass_context
def explain(context: click.Context, /, words: tuple[str, ...], **given: Any) -> None:
    """Show the finding of every failed test of the last run here (or that in DIR), or of tests whose id contains TEST.

    The exit code is that of the run; with --packet, --format github-issue or the id of a message it is 0.

    \b
    disttest explain rank-killed                            what to do about a message, by its id
    disttest explain --packet test_sum                      all evidence of one test in a folder
    disttest explain --packet test_sum --output sum.zip     the same in an archive
    disttest explain --format github-issue test_sum         the body of an issue
    """
    if len(words) == 1 and (section := section_named(words[0])) and not Path(words[0]).exists():
        click.echo(f"{section.id}\n{section.text}")
        return
    if given["packet"] or given["format"] != TEXT:
        from disttest.extras.explain.packet_run import make_packet

        click.echo(make_packet(words, given))
        return
    from disttest.extras.explain.explanation import explain_run

    explanation = explain_run(words)
    click.echo(explanation.text)
    context.exit(explanation.exit_code)
