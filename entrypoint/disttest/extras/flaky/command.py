"""``disttest flaky audit``."""

from __future__ import annotations

from typing import Any

import click

from disttest.cli.purposes import Purpose, serves
from disttest.options.flags import ShowingCommand, flags


@serves(Purpose.RESULTS)
@click.command(name="flaky", cls=ShowingCommand)
@click.argument("action", type=click.Choice(["audit"]))
@click.argument("targets", nargs=-1, metavar="[PATH…]")
@flags("flaky")
@click.pass_context
def flaky(context: click.Context, /, action: str, targets: tuple[str, ...], **given: Any) -> None:  # noqa: ARG001
    """Find entries of the quarantine that should go: expired, of unknown tests, of tests that are stable now.

    PATH is where the tests are (default: here). Which tests are stable, a history says.

    \b
    disttest flaky audit tests --history history.sqlite
    disttest flaky audit tests --fail                     exit code 1 if an entry should go
    """
    from disttest.extras.flaky.audit_run import audit

    context.exit(audit(targets, given))
