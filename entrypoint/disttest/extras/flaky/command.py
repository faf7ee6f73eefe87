"""``disttest flaky``."""

from __future__ import annotations

from typing import Any

import click

from disttest.cli.purposes import Purpose, serves
from disttest.options.flags import ShowingCommand, flags


@serves(Purpose.FAULTS)
@click.command(name="flaky", cls=ShowingCommand)
@click.argument("targets", nargs=-1, required=True, metavar="TEST…|audit [PATH…]")
@flags("flaky")
@click.pass_context
def flaky(context: click.Context, /, targets: tuple[str, ...], **given: Any) -> None:
    """Measure how often TEST fails, and find the cause: it runs hundreds of times, also under perturbations.

    Exit code 0: it never failed, 1: it failed in some run. With ``audit``: find entries of the quarantine that should
    go, which are expired, of unknown tests, or of tests that are stable now.

    \b
    disttest flaky tests/test_step.py::test_sum --budget 300
    disttest flaky tests/test_step.py::test_sum --until-fail
    disttest flaky audit tests --history history.sqlite
    disttest flaky audit tests --fail                     exit code 1 if an entry should go
    """
    if targets[0] == "audit":
        from disttest.extras.flaky.audit import audit

        context.exit(audit(targets[1:], given))
    from disttest.extras.flaky.measure_run import run_measurement

    context.exit(run_measurement(targets, context.obj, given))
