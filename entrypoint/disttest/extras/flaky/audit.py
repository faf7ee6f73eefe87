"""Entries of the quarantine that should go: expired, of tests that do not exist, of tests that are stable now."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import click

from disttest.cli.words import warn
from disttest.errors import ExitCode, UsageError
from disttest.extras.flaky.hooks import FILE, USUAL
from disttest.extras.flaky.quarantine import Entry, find_quarantine, today
from disttest.extras.history.hooks import FILE as HISTORY
from disttest.extras.history.queries import find_tests, read_test
from disttest.extras.history.rates import wilson
from disttest.extras.history.store import reading
from disttest.model import is_inside
from disttest.options.project_file import chosen_path
from disttest.options.run import filled
from disttest.planning.targets import resolve_targets
from disttest.reports.text import count
from disttest.runtime.supervisor.listing import Collection, collect_tests

STABLE_RUNS = 50
"""A test that passed in so many runs in a row fails in at most 7 % of them, with 95 % confidence."""


def find_expired(entries: Sequence[Entry], today: date) -> Iterator[tuple[Entry, str]]:
    """Entries whose failures count again, and what to do."""
    for entry in entries:
        if entry.has_expired(today):
            yield entry, f"expired on {entry.expires}: repair the test, or set another date and say why"


def find_unknown(
    entries: Sequence[Entry], nodeids: Iterable[str], skipped: Iterable[str] = ()
) -> Iterator[tuple[Entry, str]]:
    """Entries of tests that were not collected. A world that this machine has no GPUs for is not missed.

    Args:
        entries: the quarantine.
        nodeids: the collected tests.
        skipped: files, classes and folders that skipped themselves; their tests are unknown.
    """
    # Without the part in brackets: worlds and parameters depend on the machine.
    known = {nodeid.partition("[")[0] for nodeid in nodeids}
    # Installed packages differ, too: a file that `pytest.importorskip` skips here keeps its entries.
    hiding = tuple(skipped)
    for entry in entries:
        hidden = any(is_inside(entry.test, nodeid) for nodeid in hiding)
        if entry.test.partition("[")[0] not in known and not hidden:
            yield entry, "there is no such test: correct the name, or remove the entry"


def find_stable(entries: Sequence[Entry], history: sqlite3.Connection) -> Iterator[tuple[Entry, str]]:
    """Entries of tests that passed in each of their last runs, in all their worlds."""
    for entry in entries:
        names = [name for name in find_tests(history, entry.test) if entry.matches(name)]
        if names and all(_is_stable(history, name) for name in names):
            high = 100 * wilson(0, STABLE_RUNS)[1]
            yield (
                entry,
                f"stable now: passed in its last {STABLE_RUNS} runs (fails in less than {high:.0f} %); remove the entry",
            )


def _is_stable(history: sqlite3.Connection, name: str) -> bool:
    ran = [
        each for each in read_test(history, name) if each.kind not in ("skipped", "not_run", "infrastructure")
    ]
    last = ran[-STABLE_RUNS:]
    return len(last) == STABLE_RUNS and all(each.kind in ("passed", "xfailed") for each in last)


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
    # A file that cannot be imported would make all of its entries unknown.
    if collection.exit_code not in (ExitCode.PASSED, ExitCode.NOTHING_COLLECTED):
        click.echo(collection.output, err=True)
        raise UsageError("some tests could not be collected (see above): an audit would call them unknown")
    return collection


def _found(
    entries: Sequence[Entry], collection: Collection, history: Path | None
) -> Iterator[tuple[Entry, str]]:
    yield from find_expired(entries, today())
    skipped = (test.nodeid for test, _ in collection.skipped)
    yield from find_unknown(entries, (test.nodeid for test in collection.tests), skipped)
    if history is None or not history.exists():
        warn("not checked which tests are stable now: give --history FILE")
        return
    with reading(history) as connection:
        yield from find_stable(entries, connection)
