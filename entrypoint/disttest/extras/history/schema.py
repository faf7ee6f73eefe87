"""Tables of a history file, described in ``docs/history.md``. A change of them is a new version."""

from __future__ import annotations

APPLICATION = 0x64744869
"""``PRAGMA application_id``: "dtHi"."""
VERSION = 1
"""``PRAGMA user_version``."""

MAGIC = b"SQLite format 3\0"
"""First bytes of each SQLite file: https://www.sqlite.org/fileformat.html"""

KINDS = ("passed", "failed", "infrastructure", "flaky", "skipped", "not_run", "xfailed", "quarantined")
"""Kinds of outcomes; the position is the number in the file. New ones go to the end."""

# The table verdict is in the order of runs, so that a run adds its rows at the end. The past of one test has
# an index. In the order of tests each run would touch pages all over the file. A million verdicts take 37 MB,
# and one more run is added in 0.4 s (bench/history.py).
TABLES = """
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE kind (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    started_at_s REAL NOT NULL,
    duration_s REAL NOT NULL,
    exit_code INTEGER NOT NULL,
    is_green INTEGER NOT NULL,
    tests INTEGER NOT NULL,
    ran INTEGER NOT NULL,
    bad INTEGER NOT NULL,
    flaky INTEGER NOT NULL,
    infrastructure INTEGER NOT NULL,
    "commit" TEXT NOT NULL,
    branch TEXT NOT NULL,
    is_dirty INTEGER NOT NULL,
    hardware TEXT NOT NULL,
    disttest TEXT NOT NULL,
    torch TEXT NOT NULL,
    python TEXT NOT NULL
);
CREATE INDEX run_by_time ON run (started_at_s, id);
CREATE TABLE part (key TEXT PRIMARY KEY, run INTEGER NOT NULL REFERENCES run (id)) WITHOUT ROWID;
CREATE TABLE test (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    file TEXT NOT NULL,
    suite TEXT NOT NULL,
    size INTEGER,
    backend TEXT NOT NULL
);
CREATE TABLE message (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE verdict (
    run INTEGER NOT NULL REFERENCES run (id),
    test INTEGER NOT NULL REFERENCES test (id),
    kind INTEGER NOT NULL REFERENCES kind (id),
    attempts INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    duration_s REAL,
    message INTEGER REFERENCES message (id),
    PRIMARY KEY (run, test)
) WITHOUT ROWID;
CREATE INDEX verdict_by_test ON verdict (test, run);
CREATE TABLE start (
    run INTEGER NOT NULL REFERENCES run (id),
    size INTEGER NOT NULL,
    backend TEXT NOT NULL,
    device TEXT NOT NULL,
    nodes INTEGER NOT NULL,
    duration_s REAL NOT NULL,
    PRIMARY KEY (run, size, backend, device, nodes)
) WITHOUT ROWID;
"""


def is_history(head: bytes) -> bool:
    """Whether a file with these first bytes is an SQLite file."""
    return head.startswith(MAGIC)
