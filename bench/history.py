"""The history with a million verdicts: how long adding a run, timings, a trend, one test and the reports of a run take.

    python bench/history.py                   200 runs of 5,000 tests
    python bench/history.py --runs 20

The aim: nothing that a run or a person waits for takes longer than a second, timings for a plan aside.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from disttest.extras.history.adding import write_record
from disttest.extras.history.queries import read_past_runs, read_points, read_test, read_timings
from disttest.extras.history.records import COLUMNS, RunRecord, Verdict
from disttest.extras.history.shown import show_all
from disttest.extras.history.store import reading, writing

START_S = 1_780_000_000.0


def record_of(number: int, tests: int, chance: random.Random) -> RunRecord:
    columns: dict[str, Any] = dict.fromkeys(COLUMNS, 0)
    columns |= {"key": f"run-{number}", "started_at_s": START_S + 3600 * number, "commit": f"{number:040x}"}
    columns |= {
        "branch": "main",
        "hardware": "cpu",
        "disttest": "1",
        "torch": "2",
        "python": "3",
        "tests": tests,
    }
    verdicts = []
    for test in range(tests):
        is_bad = chance.random() < 0.01
        name = f"tests/distributed/test_module_{test // 50}.py::TestClass::test_number_{test}[2xgloo]"
        verdicts.append(
            Verdict(
                test=name,
                file=name.partition("::")[0],
                suite="distributed",
                size=2,
                backend="gloo",
                kind="failed" if is_bad else "passed",
                attempts=1,
                failed=int(is_bad),
                duration_s=chance.random(),
                message=f"rank 1 of 2 failed: ValueError: {test % 7}" if is_bad else "",
            )
        )
    return RunRecord(run=columns, project="", verdicts=verdicts)


def timed(name: str, work: Callable[[], Any]) -> None:
    began_s = time.perf_counter()
    work()
    print(f"{name:50} {time.perf_counter() - began_s:8.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--tests", type=int, default=5000)
    given = parser.parse_args()
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "history.sqlite"

        def add(number: int) -> None:
            record = record_of(number, given.tests, chance)
            with writing(file) as connection:
                write_record(connection, record)

        def one_test() -> None:
            with reading(file) as connection:
                name = connection.execute("SELECT name FROM test WHERE id = 77").fetchone()[0]
                assert len(read_test(connection, name)) == given.runs + 1

        def show() -> None:
            with reading(file) as connection:
                assert len([*show_all(connection, branch="", last=30)]) > 2

        timed(
            f"{given.runs} runs of {given.tests:,} tests added",
            lambda: [add(number) for number in range(given.runs)],
        )
        timed("one more run", lambda: add(given.runs))
        timed("the past of one test", one_test)
        timed("the past runs that reports show", lambda: read_past_runs(file))
        timed("a trend over all runs", lambda: read_points(file))
        timed("timings for a plan", lambda: [*read_timings(file)])
        timed("disttest history show", show)
        print(f"{'size of the file':50} {file.stat().st_size / 1e6:8.1f} MB")


if __name__ == "__main__":
    main()
