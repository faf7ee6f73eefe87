"""Find runs below paths (results directories, reports of other tools, other history files), and read them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from disttest.errors import UsageError
from disttest.extras.history.schema import MAGIC, is_history
from disttest.model import UNREADABLE
from disttest.reports import results_json
from disttest.reports.results_json import FILE_NAME as RESULTS
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME as JOURNAL
from disttest.results.journal import read_events
from disttest.safe_open import open_regular, read_regular

REPORTS = (".xml", ".json")


def find_sources(path: Path) -> list[Path]:
    """Find the results directories and reports of a path: itself, or those below it (a folder of artifacts).

    Raises:
        UsageError: there are none.
    """
    if not path.is_dir():
        if not path.exists():
            raise UsageError(f"no results {path}: give a results directory, a folder of them, or a report")
        return [path.parent if path.name in (RESULTS, JOURNAL) else path]
    found = [*_below(path)]
    if not found:
        raise UsageError(f"no results in {path} or below it: a run leaves {JOURNAL} in its directory")
    return found


def find_runs(path: Path) -> list[Path]:
    """Find the results directories only.

    Raises:
        UsageError: there are none.
    """
    found = [source for source in find_sources(path) if source.is_dir()]
    if not found:
        raise UsageError(f"no run in {path} or below it: a run leaves {JOURNAL} in its directory")
    return found


def holds_history(path: Path) -> bool:
    """Whether a path is a history file."""
    try:
        # resolve(), since a path that the user names may be a link.
        with os.fdopen(open_regular(path.resolve()), "rb") as file:
            return is_history(file.read(len(MAGIC)))
    except OSError:
        return False


def _below(top: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(top):
        if JOURNAL in files or RESULTS in files:
            below.clear()  # only its logs are below
            yield Path(folder)
            continue
        below.sort()
        for name in sorted(files):
            path = Path(folder, name)
            if holds_history(path) or (path.suffix in REPORTS and _is_report(path)):
                yield path


def _is_report(path: Path) -> bool:
    """Whether a file in a folder that the user named looks like a report; other files are skipped."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    # Coverage reports are XML, too, and many tools write JSON.
    return b"<testsuite" in head if path.suffix == ".xml" else b'"results"' in head and b'"tool"' in head


def load_run(results_dir: Path) -> RunResult:
    """Read a run from a results directory: from its ``results.json``, otherwise from its journal.

    Raises:
        UsageError: there is neither.
    """
    path = results_dir / results_json.FILE_NAME
    try:
        return results_json.load_results_json(read_regular(path))
    except FileNotFoundError:
        pass
    except (OSError, *UNREADABLE):
        # Truncated, or of another version: the journal has the same content.
        if not (results_dir / JOURNAL).is_file():
            raise UsageError(f"{path} cannot be read, and there is no {JOURNAL} beside it") from None
    try:
        return fold(read_events(results_dir / JOURNAL))
    except UsageError:
        message = f"no run in {results_dir}: neither {results_json.FILE_NAME} nor {JOURNAL} is there"
        raise UsageError(message) from None
