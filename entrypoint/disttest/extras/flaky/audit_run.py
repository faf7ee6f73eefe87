"""The work of ``disttest flaky audit``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from disttest.cli.words import warn
from disttest.errors import ExitCode, UsageError
from disttest.extras.flaky.audit import find_expired, find_stable, find_unknown
from disttest.extras.flaky.option_rows import FILE, USUAL
from disttest.extras.flaky.quarantine import Entry, find_quarantine, today
from disttest.extras.history.option_rows import FILE as HISTORY
from disttest.extras.history.store import reading
from disttest.options.project_file import chosen_path
from disttest.options.run import filled
from disttest.planning.targets import resolve_targets
from disttest.reports.text import count
from disttest.runtime.supervisor.listing import Collection, collect_tests


def audit(targets: tuple[str, ...], given: Mapping[str, Any]) -> int:
    """Print each entry that should go, and return the exit code.

    Raises:
        UsageError: there is no quarantine, or a file cannot be read, or the tests cannot be collected.
    """
    collection = _collected(targets or (".",))
    entries = find_quarantine(chosen_path(FILE, given[FILE.field], targets), Path(collection.root))
    if not entries:
        click.echo(f"no test is in quarantine: there is no {USUAL} in {collection.root}, or it is empty")
        return ExitCode.PASSED
    found = [*_found(entries, collection, chosen_path(HISTORY, given[HISTORY.field], targets))]
    for entry, why in found:
        click.echo(f"{entry.test} ({entry.owner}): {why}")
    click.echo(
        f"{count(len(entries), 'test')} in quarantine, {len({entry.test for entry, _ in found})} should go"
    )
    return ExitCode.FAILED if found and given["fail"] else ExitCode.PASSED


def _collected(targets: tuple[str, ...]) -> Collection:
    with tempfile.TemporaryDirectory(prefix="disttest-audit-") as folder:
        collection = collect_tests(resolve_targets(targets), filled({}, Path(folder)), (), Path(folder))
    if collection.exit_code not in (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED):
        click.echo(collection.output, err=True)
        raise UsageError("some tests could not be collected (see above): an audit would call them unknown")
    return collection


def _found(
    entries: Sequence[Entry], collection: Collection, history: Path | None
) -> Iterator[tuple[Entry, str]]:
    yield from find_expired(entries, today())
    yield from find_unknown(entries, (test.nodeid for test in collection.tests))
    if history is None or not history.exists():
        warn("not checked which tests are stable now: give --history FILE")
        return
    with reading(history) as connection:
        yield from find_stable(entries, connection)
