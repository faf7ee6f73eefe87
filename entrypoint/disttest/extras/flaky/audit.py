"""Entries of the quarantine that should go: expired, of tests that do not exist, of tests that are stable now."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from datetime import date

from disttest.extras.flaky.quarantine import Entry
from disttest.extras.history.queries import find_tests, read_test
from disttest.extras.history.rates import wilson

STABLE_RUNS = 50
"""A test that passed in so many runs in a row fails in at most 7 % of them, with 95 % confidence."""


def find_expired(entries: Sequence[Entry], today: date) -> Iterator[tuple[Entry, str]]:
    """Entries whose failures count again, and what to do."""
    for entry in entries:
        if entry.has_expired(today):
            yield entry, f"expired on {entry.expires}: repair the test, or set another date and say why"


def find_unknown(entries: Sequence[Entry], nodeids: Iterable[str]) -> Iterator[tuple[Entry, str]]:
    """Entries of tests that were not collected. A world that this machine has no GPUs for is not missed."""
    known = {nodeid.partition("[")[0] for nodeid in nodeids}
    for entry in entries:
        if entry.test.partition("[")[0] not in known:
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
