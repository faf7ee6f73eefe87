"""Timing files: durations of tests from journals, ``results.json`` and JUnit files of any tool.

A timing file only improves the next plan, so its faults are no errors: they become warnings with file and line, and
the plan is made without them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from disttest.errors import UsageError
from disttest.model import UNREADABLE, TestCase, TestResult
from disttest.planning.timings import Sample, Timings, WorldStart, hardware_key, is_usable
from disttest.plugin_manager import plugin_manager
from disttest.results.events import RunStarted, TestCollected, TestFinished, TestStarted, WorldStarted
from disttest.results.fold import RunResult
from disttest.results.journal import FILE_NAME, read_lines
from disttest.results.junit_cases import read_junit
from disttest.safe_open import open_regular

CLOCK_SKEW_S = 86_400.0
"""Maximum difference of another machine's clock; later times are ignored."""

Reading = Iterator[Sample | WorldStart | str]
"""Samples, and warnings as text."""


def read_timings(
    paths: Iterable[Path], *, now_s: float, hardware: str = ""
) -> tuple[Timings, tuple[str, ...]]:
    """Read timing files into one table, with warnings; a directory is read as its journal.

    Args:
        paths: files in any mixture of formats, recognized by their first bytes.
        now_s: seconds since the epoch; later times are ignored.
        hardware: key of the machines of the next run (:func:`hardware_key`).
    """
    samples: list[Sample] = []
    starts: list[WorldStart] = []
    warnings: list[str] = []
    for path in paths:
        for read in _read(path, now_s):
            match read:
                case Sample():
                    samples.append(read)
                case WorldStart():
                    starts.append(read)
                case _:
                    warnings.append(read)
    return Timings(samples, starts=starts, hardware=hardware), tuple(warnings)


def _read(path: Path, now_s: float) -> Reading:
    # A path from the user may be a symbolic link; a file inside a folder may not, since tests can write there.
    file = real = path / FILE_NAME
    if not path.is_dir():
        file, real = path, path.resolve()
    try:
        with os.fdopen(open_regular(real), "rb") as opened:
            # Some tools write a byte order mark.
            head = opened.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
        reading = plugin_manager().call("disttest_read_timings", path=real, head=head)
        if reading is not None:
            yield from reading
        elif head.startswith(b"<"):
            yield from _read_junit(file, now_s)
        # An upload may have renamed a journal. Its first line begins with `{"event":`.
        elif head.startswith(b"{") and (file.suffix == ".jsonl" or b'"event"' in head.partition(b"\n")[0]):
            yield from _read_journal(file, real, now_s)
        else:
            yield from _read_results(file, now_s)
    except (OSError, UsageError) as error:
        yield f"{file}: timings not read: {error}"


def _read_journal(path: Path, real: Path, now_s: float) -> Reading:
    tests: dict[str, TestCase] = {}
    worlds: dict[str, WorldStarted] = {}
    hardware = ""
    for number, event in read_lines(real):
        match event:
            case str():
                yield f"{path}:{number}: skipped, {event}"
            case RunStarted():
                hardware = hardware_key(event.hardware)
            case TestCollected(test=test):
                tests[test.nodeid] = test
            case WorldStarted(world_id=world_id):
                worlds[world_id] = event
            case TestStarted(world_id=world_id) if world_id in worlds:
                started = worlds.pop(world_id)
                # The first test of a world starts when its ranks are ready.
                if is_usable(event.at_s - started.at_s):
                    yield WorldStart(shape=started.shape, duration_s=event.at_s - started.at_s)
            case TestFinished(result=result) if result.nodeid in tests:
                yield from _checked(
                    _sample(tests[result.nodeid], result, hardware), f"{path}:{number}", now_s
                )


def _read_results(path: Path, now_s: float) -> Reading:
    data = path.read_bytes()
    try:
        run = msgspec.json.decode(data, type=RunResult)
    except UNREADABLE as error:
        yield f"{path}:{_broken_line(data)}: timings not read: not a journal, results.json or JUnit file: {error}"
        return
    hardware = hardware_key(run.hardware)
    for test in run.tests:
        for attempt in test.attempts:
            place = f"{path}:1: {test.test.nodeid}"
            yield from _checked(_sample(test.test, attempt, hardware), place, now_s)


def _sample(test: TestCase, result: TestResult, hardware: str) -> Sample:
    return Sample(
        test=test.nodeid,
        duration_s=result.duration_s,
        at_s=result.started_at_s,
        hardware=hardware,
        size=test.world.size if test.world else 0,
        backend=test.world.backend if test.world else "",
        file=test.file,
        suite=test.suite,
        bad=result.outcome.is_bad,
        skipped=not result.outcome.has_run,
    )


def _checked(sample: Sample, place: str, now_s: float) -> Reading:
    if not is_usable(sample.duration_s):
        yield f"{place}: skipped, a test cannot take {sample.duration_s} seconds"
    elif not is_usable(sample.at_s) or sample.at_s > now_s + CLOCK_SKEW_S:
        yield f"{place}: skipped, it is said to have run at {_when(sample.at_s)}, which is not in the past"
    else:
        yield sample


def _when(at_s: float) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return str(at_s)


def _broken_line(data: bytes) -> int:
    """Return the line at which JSON breaks; 1 if it is well formed but of another kind."""
    # msgspec reports the byte at which malformed JSON breaks; Python's decoder reports the line.
    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        return error.lineno
    except UnicodeDecodeError as error:
        return data[: error.start].count(b"\n") + 1
    # A number or a nesting that Python rejects.
    except (ValueError, RecursionError):
        pass
    return 1


def _read_junit(path: Path, now_s: float) -> Reading:
    for case in read_junit(path):
        if isinstance(case, str):
            yield case
            continue
        try:
            # Some tools write a separator of thousands: time="1,234.5".
            duration_s = float(case.time.replace(",", ""))
        except ValueError:
            yield f"{path}:{case.line}: skipped, time={case.time!r} is not a number"
            continue
        sample = Sample(
            test=case.name,
            duration_s=duration_s,
            at_s=case.at_s,
            file=case.file,
            bad=case.outcome.is_bad,
            skipped=not case.outcome.has_run,
        )
        yield from _checked(sample, f"{path}:{case.line}", now_s)
