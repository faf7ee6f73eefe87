"""Add runs to a history file: each run completely or not at all, and only once.

Reports of other tools are runs, too: JUnit and CTRF.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from disttest.errors import ExitCode, UsageError
from disttest.extras.history import schema
from disttest.extras.history.git_facts import CommitFacts
from disttest.extras.history.limits import MOST_RETRIES
from disttest.extras.history.records import COLUMNS, RunRecord, Verdict, record_of
from disttest.extras.history.sources import find_sources, holds_history, load_run
from disttest.extras.history.store import reading, writing
from disttest.model import UNREADABLE, Frozen, Hardware, Outcome, TestCase, TestResult, parts_of
from disttest.planning.timings import is_usable
from disttest.results.directory import DirectoryInUse, no_run_writes
from disttest.results.fold import RunResult, TestOutcome
from disttest.results.junit_cases import JUnitCase, read_junit

_OUTCOMES = {
    "passed": Outcome.PASSED,
    "failed": Outcome.FAILED,
    "skipped": Outcome.SKIPPED,
    "pending": Outcome.SKIPPED,
    "other": Outcome.ERROR,
}
"""Statuses of the Common Test Report Format (https://ctrf.io)."""


class _Attempt(Frozen):
    name: str
    file: str
    suite: str
    at_s: float
    duration_s: float
    outcome: Outcome
    message: str
    failed_before: int


def read_foreign(path: Path) -> tuple[RunResult, list[str]]:
    """Read the run of a report, with warnings.

    Raises:
        UsageError: it is not a report of a known format, or it has no test.
    """
    data = path.read_bytes()
    # Reports of tools on Windows may begin with a byte order mark.
    head = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    warnings: list[str] = []
    tests = _junit(path, warnings) if head.startswith(b"<") else _ctrf(path, data)
    if not tests:
        raise UsageError(
            f"{path} has no test: give a JUnit file, a CTRF file, or the results directory of a run"
        )
    # A JUnit file without timestamps has the time at which it was written.
    began_s = min((test.at_s for test in tests if test.at_s > 0), default=path.stat().st_mtime)
    return _run(tests, began_s, hashlib.sha256(data).hexdigest()[:16]), warnings


def _run(tests: Iterable[_Attempt], began_s: float, digest: str) -> RunResult:
    named: dict[str, _Attempt] = {}
    for test in tests:
        # A report of several runs (Python versions, shards) repeats names; a pass must not hide the failure of another.
        named[test.name] = max(named.get(test.name, test), test, key=_severity)
    outcomes = tuple(map(_outcome, named.values()))
    took_s = sum(outcome.final.duration_s for outcome in outcomes)
    failed = any(outcome.final.outcome.is_bad for outcome in outcomes)
    return RunResult(
        run_id=f"report-{digest}",
        argv=(),
        root="",
        hardware=Hardware(cpus=0),
        slots=0,
        disttest="",
        started_at_s=began_s,
        ended_at_s=began_s + took_s,
        exit_code=ExitCode.FAILED if failed else ExitCode.PASSED,
        reason="",
        tests=outcomes,
        collection_errors=(),
        worlds=(),
        notes=(),
    )


def _severity(test: _Attempt) -> tuple[bool, bool, int]:
    return test.outcome.is_bad, test.outcome.has_run, test.failed_before


def _outcome(test: _Attempt) -> TestOutcome:
    case = TestCase(
        nodeid=test.name,
        slug="",
        classname=test.name.partition("::")[0],
        name=parts_of(test.name)[2],
        file=test.file,
        line=1,
        suite=test.suite,
    )
    earlier = (TestResult(nodeid=test.name, outcome=Outcome.FAILED, message=test.message),) * min(
        test.failed_before, MOST_RETRIES
    )
    final = TestResult(
        nodeid=test.name,
        outcome=test.outcome,
        attempt=test.failed_before + 1,
        started_at_s=max(0.0, test.at_s),
        duration_s=test.duration_s if is_usable(test.duration_s) else 0.0,
        message=test.message,
    )
    return TestOutcome(test=case, attempts=(*earlier, final))


def _junit(path: Path, warnings: list[str]) -> list[_Attempt]:
    cases = []
    for case in read_junit(path):
        if isinstance(case, JUnitCase):
            cases.append(_of_junit(case))
        else:
            warnings.append(case)
    return cases


def _of_junit(case: JUnitCase) -> _Attempt:
    try:
        # Some tools write `1,234.5`.
        duration_s = float(case.time.replace(",", ""))
    except ValueError:
        duration_s = 0.0
    return _Attempt(
        name=case.name,
        file=case.file,
        suite=case.name.partition("::")[0],
        at_s=case.at_s,
        duration_s=duration_s,
        outcome=case.outcome,
        message=case.message,
        failed_before=case.failed_before,
    )


class _CtrfTest(msgspec.Struct):
    name: str
    status: str
    duration: float = 0.0
    """Duration in milliseconds."""
    start: float = 0.0
    suite: Any = ""
    filePath: str = ""  # noqa: N815 - the name of the format
    message: str = ""
    retries: int = 0
    flaky: bool = False


class _CtrfResults(msgspec.Struct):
    tests: list[_CtrfTest]


class _Ctrf(msgspec.Struct):
    results: _CtrfResults


def _ctrf(path: Path, data: bytes) -> list[_Attempt]:
    try:
        report = msgspec.json.decode(data, type=_Ctrf)
    except UNREADABLE as error:
        raise UsageError(
            f"{path} is not a report of a known format ({error}); give a JUnit file, a CTRF file, or a results directory"
        ) from None
    return [
        _Attempt(
            name=f"{_suite(test)}::{test.name}".removeprefix("::"),
            file=test.filePath,
            suite=_suite(test),
            at_s=test.start / 1000,
            duration_s=test.duration / 1000,
            outcome=_OUTCOMES.get(test.status, Outcome.ERROR),
            message=test.message,
            # CTRF counts retries also of tests that failed in all of them. A flaky test without a count had
            # at least one.
            failed_before=max(test.retries, int(test.flaky)) if test.status == "passed" else test.retries,
        )
        for test in report.results.tests
    ]


def _suite(test: _CtrfTest) -> str:
    """Return the suite of a test, which is a string or a list of strings."""
    parts = test.suite if isinstance(test.suite, list) else [test.suite or ""]
    return " > ".join(map(str, parts))


@dataclass
class Added:
    """The outcome of adding."""

    runs: int = 0
    verdicts: int = 0
    known: int = 0
    """Runs that the history already contained."""
    warnings: list[str] = field(default_factory=list)


def add_results(history: Path, paths: Sequence[Path], given: CommitFacts, *, now_s: float) -> Added:
    """Add all runs below some paths.

    Args:
        history: the file; it is made if there is none.
        paths: results directories, folders of them, reports of other tools, and history files.
        given: facts for runs that do not record them.
        now_s: seconds since the epoch.

    Raises:
        UsageError: nothing is found, a report cannot be read, a run is of another project, or the file cannot be used.
    """
    added = Added()
    for source in [source for path in paths for source in find_sources(path)]:
        # Looked up for each source: the first one makes the file.
        if history.exists() and source.samefile(history):
            continue  # the history is in one of the added folders
        for record in _records(source, given, now_s, added.warnings):
            _add(history, record, source, added)
    return added


def _records(source: Path, given: CommitFacts, now_s: float, warnings: list[str]) -> Iterator[RunRecord]:
    if source.is_dir():
        try:
            # A run counts once. Added in the middle, it would stay unfinished in the history forever.
            with no_run_writes(source):
                run = load_run(source)
        except DirectoryInUse as error:
            warnings.append(f"{source} is {error.by} and left out: add it when that run has ended")
            return
        yield record_of(run, given, now_s=now_s)
    elif holds_history(source):
        yield from read_records(source)
    else:
        run, doubts = read_foreign(source)
        warnings += doubts
        yield record_of(run, given, now_s=now_s)


def _add(history: Path, record: RunRecord, source: Path, added: Added) -> None:
    # One transaction for each run: a command that is killed has added whole runs, and other commands get
    # their turn.
    with writing(history) as connection:
        _check_project(connection, record, history, source)
        if _is_known(connection, record):
            added.known += 1
            return
        _remove_parts(connection, record)
        write_record(connection, record)
    added.runs += 1
    added.verdicts += len(record.verdicts)
    added.warnings += record.warnings


def _check_project(connection: sqlite3.Connection, record: RunRecord, history: Path, source: Path) -> None:
    known = connection.execute("SELECT value FROM fact WHERE name = 'project'").fetchone()
    if known is None and record.project:
        connection.execute("INSERT INTO fact VALUES ('project', ?)", (record.project,))
    elif known is not None and record.project not in ("", known[0]):
        raise UsageError(
            f"{source} is of project {record.project}, and history {history} of {known[0]}; choose another --history, "
            f"or add --project {known[0]} if they are one project"
        )


def _is_known(connection: sqlite3.Connection, record: RunRecord) -> bool:
    """Whether the history contains the run, or a merged run that includes it or all its shards."""
    found = connection.execute(
        "SELECT 1 FROM run WHERE key = :key UNION ALL SELECT 1 FROM part WHERE key = :key",
        {"key": record.key},
    )
    return found.fetchone() is not None or any(
        set(record.parts) < parts for parts in _merged_runs(connection, record).values()
    )


def _remove_parts(connection: sqlite3.Connection, record: RunRecord) -> None:
    """Remove the shards that a merged run joins, and earlier merges of them: their verdicts are in it."""
    found = (
        connection.execute("SELECT id FROM run WHERE key = ?", (key,)).fetchone() for key in record.parts
    )
    merged = _merged_runs(connection, record)
    runs = [row[0] for row in found if row] + [run for run in merged if merged[run] <= set(record.parts)]
    for run in runs:
        for table in ("verdict", "start", "part"):
            connection.execute(f"DELETE FROM {table} WHERE run = ?", (run,))  # noqa: S608 - a name of this line
        connection.execute("DELETE FROM run WHERE id = ?", (run,))


def _merged_runs(connection: sqlite3.Connection, record: RunRecord) -> dict[int, set[str]]:
    """Map the merged runs that share a shard with a merged run to the keys of their shards."""
    found = (
        connection.execute("SELECT run FROM part WHERE key = ?", (key,)).fetchone() for key in record.parts
    )
    runs = {row[0] for row in found if row}
    parts = "SELECT key FROM part WHERE run = ?"
    return {run: {key for (key,) in connection.execute(parts, (run,))} for run in runs}


def write_record(connection: sqlite3.Connection, record: RunRecord) -> None:
    """Insert all rows of a run."""
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    marks = ", ".join(f":{name}" for name in COLUMNS)
    run = connection.execute(f"INSERT INTO run ({names}) VALUES ({marks})", record.run).lastrowid  # noqa: S608
    connection.executemany("INSERT OR REPLACE INTO part VALUES (?, ?)", [(key, run) for key in record.parts])
    tests = _ids(
        connection,
        "test",
        ("name", "file", "suite", "size", "backend"),
        [each[:5] for each in record.verdicts],
    )
    messages = _ids(
        connection, "message", ("text",), [(each.message,) for each in record.verdicts if each.message]
    )
    kinds = {name: number for number, name in enumerate(schema.KINDS)}
    rows: list[tuple[Any, ...]] = [
        (
            run,
            tests[each.test],
            kinds[each.kind],
            each.attempts,
            each.failed,
            each.duration_s,
            messages.get(each.message),
        )
        for each in record.verdicts
    ]
    rows.sort(key=itemgetter(1))
    # In the order of the table: pages are filled one after another.
    connection.executemany("INSERT OR REPLACE INTO verdict VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    connection.executemany(
        "INSERT OR REPLACE INTO start VALUES (?, ?, ?, ?, ?, ?)", [(run, *each) for each in record.starts]
    )


def _ids(
    connection: sqlite3.Connection, table: str, columns: Sequence[str], rows: Iterable[tuple[object, ...]]
) -> dict[object, int]:
    """Insert the new rows, and map the first column of each row to its number."""
    unique = {row[0]: row for row in rows}
    marks = ", ".join("?" * len(columns))
    connection.executemany(
        f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})",  # noqa: S608 - names of this module
        unique.values(),
    )
    # Asked for, since lastrowid does not change when INSERT OR IGNORE ignores a row.
    find = f"SELECT id FROM {table} WHERE {columns[0]} = ?"  # noqa: S608
    return {key: connection.execute(find, (key,)).fetchone()[0] for key in unique}


def read_records(path: Path) -> Iterator[RunRecord]:
    """Yield all runs of another history file, the oldest first.

    Raises:
        UsageError: as :func:`disttest.extras.history.store.reading`.
    """
    with reading(path) as connection:
        project = connection.execute("SELECT value FROM fact WHERE name = 'project'").fetchone()
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        runs = connection.execute(f"SELECT id, {names} FROM run ORDER BY started_at_s, id").fetchall()  # noqa: S608
        for number, *values in runs:
            yield RunRecord(
                run=dict(zip(COLUMNS, values, strict=True)),
                project=project[0] if project else "",
                verdicts=_verdicts(connection, number),
                starts=connection.execute(
                    "SELECT size, backend, device, nodes, duration_s FROM start WHERE run = ?", (number,)
                ).fetchall(),
                parts=[row[0] for row in connection.execute("SELECT key FROM part WHERE run = ?", (number,))],
            )


def _verdicts(connection: sqlite3.Connection, run: int) -> list[Verdict]:
    rows = connection.execute(
        "SELECT test.name, file, suite, size, backend, kind.name, attempts, failed, duration_s, coalesce(text, '') "
        "FROM verdict JOIN test ON test.id = verdict.test JOIN kind ON kind.id = verdict.kind "
        "LEFT JOIN message ON message.id = verdict.message WHERE run = ?",
        (run,),
    )
    return [Verdict(*row) for row in rows]
