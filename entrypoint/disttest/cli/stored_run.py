"""A stored run: finding its directory, reading its journal, and selecting its tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from disttest.errors import UsageError
from disttest.reports.text import count
from disttest.results.directory import DEFAULT
from disttest.results.events import Noted
from disttest.results.fold import RunResult, TestOutcome, fold
from disttest.results.journal import FILE_NAME, read_events


def find_run(words: Sequence[str], folder: Path = Path()) -> tuple[Path, str]:
    """Find the requested run and the requested part of a test's id, which is empty for all failed tests.

    Args:
        words: a directory, a part of a test's id, or both in this order.
        folder: folder in which runs without a directory write.

    Raises:
        UsageError: there are more words.
    """
    if len(words) > 2:
        raise UsageError(f"give a directory and a part of one test's id: these are {len(words)} words")
    if words and (len(words) == 2 or Path(words[0]).is_dir()):
        return Path(words[0]), "".join(words[1:])
    return next(iter(stored_runs(folder)), DEFAULT), "".join(words)


def stored_runs(folder: Path) -> list[Path]:
    """List the directories in a folder that runs without a directory have written, newest first."""
    # A run next to another one writes into `results-2`, and one whose directory was deleted into
    # `results-PID`.
    runs = [folder / DEFAULT, *folder.glob(f"{DEFAULT}-*")]
    kept = [run for run in runs if (run / FILE_NAME).is_file()]
    return sorted(kept, key=lambda run: (run / FILE_NAME).stat().st_mtime, reverse=True)


def read_run(results_dir: Path) -> RunResult:
    """Read the run whose journal is in a directory.

    Raises:
        UsageError: there is no journal, or none of its lines is an event.
    """
    path = results_dir / FILE_NAME
    events = list(read_events(path))
    # A line that is not an event is read as a note.
    if all(isinstance(event, Noted) for event in events):
        raise UsageError(
            f"{path} is not a journal: no line is an event; give the directory with the results of a run"
        )
    return fold(events)


def select(run: RunResult, text: str) -> tuple[TestOutcome, ...]:
    """Return all tests whose id contains a text; without one, failed and flaky tests and those with findings.

    Raises:
        UsageError: no id contains it.
    """
    if not text:
        shown = {outcome.test.nodeid for outcome in (*run.bad, *run.flaky)}
        warned = (each for each in run.tests if each.final.findings and each.test.nodeid not in shown)
        return (*run.bad, *run.flaky, *warned)
    found = tuple(outcome for outcome in run.tests if text in outcome.test.nodeid)
    if not found:
        known = f"; an id is {run.tests[0].test.nodeid}" if run.tests else ""
        raise UsageError(
            f"no test of this run has {text!r} in its id; it has {count(len(run.tests), 'test')}{known}"
        )
    return found
