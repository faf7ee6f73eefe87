"""The file of tests in quarantine."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec

from disttest.clock import wall
from disttest.errors import UsageError
from disttest.extras.flaky.hooks import USUAL
from disttest.model import Frozen
from disttest.safe_open import read_input


class Entry(Frozen, forbid_unknown_fields=True):
    """A test in quarantine."""

    test: str
    """Its node id; without the part in brackets, all of its worlds and parameters."""
    owner: str
    reason: str
    expires: date
    """The last day on which its failures do not count."""
    link: str = ""
    """The issue."""

    def matches(self, nodeid: str) -> bool:
        """Whether the entry is about a test."""
        return nodeid == self.test or nodeid.startswith(f"{self.test}[")

    def has_expired(self, today: date) -> bool:
        """Whether its failures count again."""
        return today > self.expires


def today() -> date:
    """The date in UTC: a run has one date, whatever machines it uses."""
    return datetime.fromtimestamp(wall(), UTC).date()


def find_quarantine(named: Path | None, root: Path) -> Sequence[Entry]:
    """The entries of the file that an option names, or of the usual one in the root directory if it is there.

    Raises:
        UsageError: the file cannot be read, or is not valid.
    """
    if named is not None:
        return read_quarantine(named)
    usual = root / USUAL
    return read_quarantine(usual) if usual.is_file() else ()


def read_quarantine(path: Path) -> Sequence[Entry]:
    """The entries of a file.

    Raises:
        UsageError: it cannot be read, is not TOML, or an entry is not valid; the message names the entry.
    """
    try:
        table: Mapping[str, Any] = tomllib.loads(read_input(path).decode())
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}; give a file of tests in quarantine"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    if unknown := set(table) - {"test"}:
        raise UsageError(f"{path}: there is no setting {min(unknown)}; each test is a table [[test]]")
    rows = table.get("test", [])
    if not isinstance(rows, list):
        raise UsageError(f"{path}: test is not a list of tables; write [[test]] above each test")
    return _checked(path, [_entry(path, number, row) for number, row in enumerate(rows, 1)])


def _entry(path: Path, number: int, row: object) -> Entry:
    where = f"{path}: test {number}"
    if isinstance(row, dict) and isinstance(row.get("test"), str):
        where += f" ({row['test']})"
    try:
        entry = msgspec.convert(row, Entry)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{where}: {error}; an entry has test, owner, reason, expires (a date such as 2026-12-31) and perhaps link"
        ) from None
    if empty := [name for name in ("test", "owner", "reason") if not getattr(entry, name).strip()]:
        raise UsageError(f"{where}: {empty[0]} is empty; somebody has to repair this test, and know why")
    return entry


def _checked(path: Path, entries: Sequence[Entry]) -> Sequence[Entry]:
    known: set[str] = set()
    for entry in entries:
        if entry.test in known:
            raise UsageError(f"{path} lists {entry.test} twice; remove one of the entries")
        known.add(entry.test)
    return entries


def entry_of(entries: Sequence[Entry], nodeid: str) -> Entry | None:
    """The entry that is about a test; the one that names it exactly comes first."""
    # `test_a` and `test_a[2xgloo]` may both have an entry.
    found = [entry for entry in entries if entry.matches(nodeid)]
    return max(found, key=lambda entry: len(entry.test), default=None)
