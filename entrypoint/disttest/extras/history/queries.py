"""Read a history file: timings, past runs, and the past of one test."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from disttest.extras.history.limits import REPORTED_RUNS, TIMED_RUNS
from disttest.extras.history.store import reading
from disttest.model import WorldShape
from disttest.planning.timings import WINDOW, Sample, WorldStart
from disttest.reports.past_runs import RED, PastRun, Point, when

_NEWEST = "SELECT id FROM run ORDER BY started_at_s DESC, id DESC LIMIT ?"


def read_timings(path: Path) -> Iterator[Sample | WorldStart]:
    """Yield durations of tests and starts of worlds in the last runs.

    Raises:
        UsageError: as :func:`disttest.extras.history.store.reading`.
    """
    with reading(path) as connection:
        yield from map(_sample, connection.execute(f"{_SAMPLES} WHERE run IN ({_NEWEST})", (TIMED_RUNS,)))
        # Tests that did not run for long, for example those of a nightly run, have older durations than the
        # last runs.
        left = connection.execute(
            f"SELECT id FROM test WHERE id NOT IN (SELECT test FROM verdict WHERE run IN ({_NEWEST}))",  # noqa: S608
            (TIMED_RUNS,),
        ).fetchall()
        for test in left:
            # By the index verdict_by_test, which has the tests of all runs together.
            rows = connection.execute(f"{_SAMPLES} WHERE test = ? ORDER BY run DESC LIMIT {WINDOW}", test)
            yield from map(_sample, rows)
        for size, backend, device, nodes, duration_s in connection.execute(
            f"SELECT size, backend, device, nodes, duration_s FROM start WHERE run IN ({_NEWEST})",  # noqa: S608
            (TIMED_RUNS,),
        ):
            shape = WorldShape(size=size, backend=backend, device=device, nodes=nodes)
            yield WorldStart(shape=shape, duration_s=duration_s)


_SAMPLES = (
    "SELECT test.name, verdict.duration_s, started_at_s, hardware, size, backend, file, suite, kind.name "
    "FROM verdict JOIN run ON run.id = verdict.run JOIN test ON test.id = verdict.test JOIN kind ON kind.id = verdict.kind"
)


def _sample(row: Sequence[object]) -> Sample:
    name, duration_s, at_s, hardware, size, backend, file, suite, kind = row
    unknown = duration_s is None
    return Sample(
        test=str(name),
        duration_s=0.0 if unknown else float(duration_s),  # type: ignore[arg-type]
        at_s=float(at_s),  # type: ignore[arg-type]
        hardware=str(hardware),
        size=size,  # type: ignore[arg-type]
        backend=str(backend) if size is not None else None,
        file=str(file),
        suite=str(suite),
        bad=kind in (*RED, "quarantined") or unknown,
        skipped=kind in ("skipped", "not_run"),
    )


def read_points(path: Path) -> list[Point]:
    """Read the figures of all runs, the oldest first.

    Raises:
        UsageError: as :func:`disttest.extras.history.store.reading`.
    """
    with reading(path) as connection:
        rows = connection.execute(f"SELECT {_POINT} FROM run ORDER BY started_at_s, id").fetchall()  # noqa: S608
    return [_point(*row) for row in rows]


_POINT = "started_at_s, key, is_green, tests, duration_s, bad, flaky, ran, infrastructure"


def _point(
    at_s: float,
    key: str,
    is_green: int,
    tests: int,
    duration_s: float,
    bad: int,
    flaky: int,
    ran: int,
    infrastructure: int,
) -> Point:
    return Point(
        label=when(at_s),
        run_id=key,
        green=bool(is_green),
        tests=tests,
        duration_s=duration_s,
        bad=bad,
        flake_rate=flaky / max(1, ran),
        infrastructure_rate=infrastructure / max(1, ran),
    )


def read_past_runs(
    path: Path, *, most: int = REPORTED_RUNS, without: str = "", before_s: float | None = None
) -> list[PastRun]:
    """Read the last runs, the oldest first.

    Args:
        path: the history.
        most: number of runs.
        without: key of a run to leave out: the one that is shown next to them.
        before_s: only runs that began before this time; None for all.

    Raises:
        UsageError: as :func:`disttest.extras.history.store.reading`.
    """
    with reading(path) as connection:
        runs = connection.execute(
            f'SELECT id, "commit", branch, {_POINT} FROM run WHERE key != ? AND started_at_s < ? '  # noqa: S608
            "ORDER BY started_at_s DESC, id DESC LIMIT ?",
            (without, 1e12 if before_s is None else before_s, most),
        ).fetchall()
        return [
            PastRun(
                started_at_s=row[3],
                point=_point(*row[3:]),
                kinds=_kinds(connection, row[0]),
                commit=row[1],
                branch=row[2],
            )
            for row in reversed(runs)
        ]


def _kinds(connection: sqlite3.Connection, run: int) -> Mapping[str, str]:
    # Reports have no other kind for a failure that did not count; it is no run in which the test passed.
    return dict(
        connection.execute(
            "SELECT test.name, CASE kind.name WHEN 'quarantined' THEN 'failed' ELSE kind.name END "
            "FROM verdict JOIN test ON test.id = verdict.test "
            "JOIN kind ON kind.id = verdict.kind WHERE run = ?",
            (run,),
        )
    )


class PastVerdict(NamedTuple):
    """Outcome of a test in one run of the history."""

    kind: str
    at_s: float
    commit: str
    branch: str
    is_dirty: bool
    attempts: int
    failed: int
    duration_s: float | None
    message: str
    run: str
    """Key of the run."""


def read_test(
    connection: sqlite3.Connection, name: str, *, branch: str = "", most: int = -1
) -> list[PastVerdict]:
    """Read the outcomes of a test, the oldest first.

    Args:
        connection: connection to the history.
        name: node id; for reports of other tools ``classname::name``.
        branch: only runs of this branch; empty for all.
        most: number of outcomes, the last ones; -1 for all.
    """
    rows = connection.execute(
        'SELECT kind.name, started_at_s, "commit", branch, is_dirty, attempts, failed, verdict.duration_s, '
        "coalesce(text, ''), run.key FROM test JOIN verdict ON verdict.test = test.id JOIN run ON run.id = verdict.run "
        "JOIN kind ON kind.id = verdict.kind LEFT JOIN message ON message.id = verdict.message "
        "WHERE test.name = :name AND (:branch = '' OR branch = :branch) ORDER BY started_at_s DESC, run.id DESC LIMIT :most",
        {"name": name, "branch": branch, "most": most},
    ).fetchall()
    return [PastVerdict(*row) for row in reversed(rows)]


def find_tests(connection: sqlite3.Connection, text: str) -> list[str]:
    """Return the names of tests that contain a text; an exact match comes first."""
    rows = connection.execute(
        "SELECT name FROM test WHERE instr(name, ?) > 0 ORDER BY name != ?, name", (text, text)
    )
    return [row[0] for row in rows]
