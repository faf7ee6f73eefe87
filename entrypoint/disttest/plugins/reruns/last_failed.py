"""``disttest run --last-failed``: narrow the targets of a run to the tests that failed in an earlier run."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from disttest.cli.stored_run import find_run
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME, read_events
from disttest.results.repeat import seen_from_start, target_of


def only_failed(targets: Sequence[str], results: Path | None, warn: Callable[[str], None]) -> tuple[str, ...]:
    """Return the tests below the targets that failed in an earlier run; all targets if none did.

    Args:
        targets: paths, node ids and suites, as the user named them.
        results: results directory of that run; None for the newest one here.
        warn: receives a message if all targets run.
    """
    folder = results or find_run(())[0]
    if not (folder / FILE_NAME).is_file():
        warn(f"--last-failed: there are no results in {folder}: all tests run")
        return tuple(targets)
    failed = dict.fromkeys(_failed(fold(read_events(folder / FILE_NAME))))
    kept = tuple(each for each in failed if any(_covers(target, each) for target in targets))
    if not kept:
        warn(f"--last-failed: none of these tests failed in {folder}: all of them run")
    return kept or tuple(targets)


def _failed(run: RunResult) -> Iterator[str]:
    yield from (seen_from_start(error.nodeid, run) for error in run.collection_errors)
    yield from (target_of(outcome.test, run) for outcome in run.bad)


def _covers(target: str, failed: str) -> bool:
    """Return whether a target contains a test: the test itself, its function, class, file, suite, or a folder above."""
    file, colons, name = target.partition("::")
    whole = f"{os.path.normpath(file)}{colons}{name}"
    inside = failed.startswith((f"{whole}/", f"{whole}::", f"{whole}["))
    return failed == whole or inside or (whole == "." and not failed.startswith(".."))
