"""Open a history file, and explain why one cannot be used."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from disttest.errors import UsageError
from disttest.extras.history import schema
from disttest.extras.history.limits import LOCK_S


class HistoryLocked(UsageError):
    """Another process has locked the file."""


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that sees one state of the file, whatever is added meanwhile.

    Raises:
        UsageError: the file is missing, not a history, damaged, locked, or of a newer version.
    """
    with _errors(path), closing(_opened(path)) as connection:
        # Deferred: the state is that of the first SELECT. A writer waits until this transaction ends.
        connection.execute("BEGIN")
        yield connection


@contextmanager
def writing(path: Path, *, lock_s: float = LOCK_S) -> Iterator[sqlite3.Connection]:
    """Open the connection of the only writer. Changes are kept completely, or not at all if the block raises or dies.

    Args:
        path: the file, which is created if it does not exist.
        lock_s: time to wait for another writer.

    Raises:
        UsageError: as for :func:`reading`, or the file cannot be created or written.
    """
    with _errors(path, lock_s), closing(_opened(path, make=True, lock_s=lock_s)) as connection:
        # The write lock now: of two transactions that have read and then want to write, SQLite refuses one
        # without waiting.
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not connection.execute("PRAGMA user_version").fetchone()[0]:
                _make_tables(connection)
            yield connection
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


def _opened(path: Path, *, make: bool = False, lock_s: float = LOCK_S) -> sqlite3.Connection:
    exists = path.exists()
    if exists:
        _check_is_sqlite(path)
    elif not make:
        raise UsageError(f"no history {path}; make it with `disttest history add RESULTS --history {path}`")
    # mode=rw for readers too: SQLite has to roll back the changes of a killed writer. A read-only file opens
    # read-only.
    mode = "rw" if exists else "rwc"
    # isolation_level=None, since the module would begin transactions itself, and deferred ones.
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}", uri=True, timeout=lock_s, isolation_level=None
    )
    try:
        _check_is_ours(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_is_sqlite(path: Path) -> None:
    if not path.is_file():
        raise UsageError(f"{path} is not a file; give the path of a history file")
    with path.open("rb") as file:
        head = file.read(len(schema.MAGIC))
    # Another process that is creating the file leaves it empty until its first commit.
    if head and not schema.is_history(head):
        raise UsageError(
            f"{path} is not a history: it does not begin as an SQLite file does; choose another --history"
        )


def _check_is_ours(path: Path, connection: sqlite3.Connection) -> None:
    # One transaction: another process may make the tables between two of these reads.
    connection.execute("BEGIN")
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    connection.execute("COMMIT")
    if version > schema.VERSION and application == schema.APPLICATION:
        raise UsageError(
            f"history {path} is of version {version}, and this disttest reads up to {schema.VERSION}; upgrade disttest"
        )
    if tables and application != schema.APPLICATION:
        raise UsageError(f"{path} is the SQLite file of another program; choose another --history")


def _make_tables(connection: sqlite3.Connection) -> None:
    # One by one: executescript() commits the open transaction first, and another process would see half of
    # the tables.
    for statement in filter(str.strip, schema.TABLES.split(";")):
        connection.execute(statement)
    connection.executemany("INSERT INTO kind VALUES (?, ?)", enumerate(schema.KINDS))
    # Both numbers are in the header of the file, and so belong to the transaction.
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION}")
    connection.execute(f"PRAGMA user_version = {schema.VERSION}")


@contextmanager
def _errors(path: Path, lock_s: float = LOCK_S) -> Iterator[None]:
    """Turn errors of SQLite into user errors with cause and advice."""
    try:
        yield
    except sqlite3.Error as error:
        # The low byte is the primary code: SQLITE_BUSY_SNAPSHOT is SQLITE_BUSY, for example.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise HistoryLocked(
                f"history {path} is locked: another process has been writing it for {lock_s:g} s; try again when it has ended"
            ) from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            raise UsageError(
                f"history {path} is damaged ({error}); restore a copy, or delete it and add the results again"
            ) from error
        raise UsageError(f"history {path} cannot be used: {error}") from error
    except OSError as error:
        raise UsageError(f"history {path} cannot be read: {error.strerror}") from error
