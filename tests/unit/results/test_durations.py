"""Timing files of every format, good and bad."""

from __future__ import annotations

from pathlib import Path

import pytest
from planning_cases import case
from shard_runs import START_S, ShardRun, cases

from disttest.model import Outcome, WorldShape
from disttest.reports.write import write_reports
from disttest.results.durations import read_timings
from disttest.results.fold import fold
from disttest.results.journal import FILE_NAME, read_events

A, B = cases("a", "b")
NOW_S = START_S + 10_000

JUNIT = """<?xml version="1.0"?>
<testsuites><testsuite name="pytest" timestamp="2026-05-28T20:26:40">
<testcase classname="tests.test_a" name="a[2xgloo]" time="2.5"/>
<testcase classname="tests.test_a" name="b[2xgloo]" time="7"><failure message="no"/></testcase>
<testcase classname="tests.test_a" name="c[2xgloo]" time="1,003.5"/>
<testcase classname="tests.test_a" name="d[2xgloo]" time="0"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>
"""


def journal(path: Path) -> Path:
    run = ShardRun(path)
    run.run(A, seconds=3)
    run.run(B, Outcome.FAILED, seconds=100)
    return run.finish()


def test_a_journal_teaches_durations_starts_and_failures(tmp_path: Path) -> None:
    timings, warnings = read_timings([journal(tmp_path) / FILE_NAME], now_s=NOW_S, hardware="H100")

    assert () == warnings
    assert 3 == timings.expect(A)
    assert 0.5 == timings.start_s(WorldShape(size=2, backend="gloo", device="cuda"))
    assert {B.nodeid} == timings.failed_among([A, B])


def test_a_directory_stands_for_its_journal(tmp_path: Path) -> None:
    assert 3 == read_timings([journal(tmp_path)], now_s=NOW_S)[0].expect(A)


def test_results_json_teaches_the_same(tmp_path: Path) -> None:
    run = fold(read_events(journal(tmp_path) / FILE_NAME))
    write_reports(run, tmp_path, ("json", "junit"))

    for name in ("results.json", "junit.xml"):
        timings, warnings = read_timings([tmp_path / name], now_s=NOW_S)
        assert ((), 3) == (warnings, timings.expect(A)), name


def test_junit_of_any_tool(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text(JUNIT)

    timings, warnings = read_timings([file], now_s=NOW_S)

    assert () == warnings
    assert 2.5 == timings.expect(A)
    assert 1003.5 == timings.expect(case("c"))
    assert 503 == timings.expect(case("d"))  # between the two: that it was skipped says nothing
    assert {B.nodeid} == timings.failed_among([A, B])


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        ('time="2.5"', 'time="-2.5"', "j.xml:3: skipped, a test cannot take -2.5 seconds"),
        ('time="2.5"', 'time="NaN"', "j.xml:3: skipped, a test cannot take nan seconds"),
        ('time="2.5"', 'time="inf"', "j.xml:3: skipped, a test cannot take inf seconds"),
        ('time="2.5"', 'time="soon"', "j.xml:3: skipped, time='soon' is not a number"),
        (
            "2026-05-28T",
            "2999-05-28T",
            "j.xml:3: skipped, it is said to have run at 2999-05-28T20:26:40+00:00",
        ),
        ("</testsuite>", "</nonsense>", "j.xml:7: the rest is skipped, not XML: mismatched tag"),
    ],
)
def test_bad_junit_is_a_warning_with_file_and_line(tmp_path: Path, old: str, new: str, warning: str) -> None:
    file = tmp_path / "j.xml"
    file.write_text(JUNIT.replace(old, new))

    timings, warnings = read_timings([file], now_s=NOW_S)

    assert warning in warnings[0]
    assert timings.expect(A) in (2.5, 1003.5, 1.0)


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("{not json", "skipped, not an event: JSON is malformed"),
        ('{"event": "test_finished", "at_s": 1}', "skipped, not an event: Object missing required field"),
        (
            '{"event":"test_finished","at_s":1,"result":{"nodeid":"NODEID","outcome":"passed","duration_s":-1}}',
            "skipped, a test cannot take -1.0 seconds",
        ),
        (
            '{"event":"test_finished","at_s":1,"result":{"nodeid":"NODEID","outcome":"passed","started_at_s":9e10}}',
            "which is not in the past",
        ),
    ],
)
def test_a_bad_line_of_a_journal_is_a_warning_with_file_and_line(
    tmp_path: Path, line: str, warning: str
) -> None:
    journal(tmp_path)
    file = tmp_path / FILE_NAME
    before = len(file.read_text().splitlines())
    with file.open("a") as opened:
        opened.write(line.replace("NODEID", A.nodeid) + "\n")

    timings, (found,) = read_timings([file], now_s=NOW_S)

    assert found.startswith(f"{file}:{before + 1}: ")
    assert warning in found
    assert 3 == timings.expect(A)


@pytest.mark.parametrize(
    ("content", "warning"),
    [
        (b'{\n "run_id": \n}', "t.json:3: timings not read"),
        (b"\xff\xfe{", "t.json:1: timings not read"),
        (b"", "t.json:1: timings not read"),
        (b"test_a 3.5\n", "t.json:1: timings not read: not a journal, results.json or JUnit file"),
    ],
)
def test_a_file_of_no_known_kind_is_a_warning(tmp_path: Path, content: bytes, warning: str) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(content)

    assert warning in read_timings([file], now_s=NOW_S)[1][0]


def test_a_missing_file_is_a_warning(tmp_path: Path) -> None:
    timings, (warning,) = read_timings([tmp_path / "none.json", journal(tmp_path)], now_s=NOW_S)

    assert "none.json: timings not read: " in warning
    assert 3 == timings.expect(A)


def test_the_order_of_the_files_does_not_matter(tmp_path: Path) -> None:
    for number in range(3):
        run = ShardRun(tmp_path / str(number), at_s=START_S + number)
        run.run(A, seconds=number + 1)
        run.finish()
    paths = [tmp_path / str(number) for number in range(3)]

    expected = {read_timings(order, now_s=NOW_S)[0].expect(A) for order in (paths, paths[::-1])}

    assert {3.0} == expected
