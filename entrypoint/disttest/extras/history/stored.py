"""Read a run from its results directory."""

from __future__ import annotations

from pathlib import Path

from disttest.errors import UsageError
from disttest.model import UNREADABLE
from disttest.reports import results_json
from disttest.results.fold import RunResult, fold
from disttest.results.journal import FILE_NAME as JOURNAL
from disttest.results.journal import read_events
from disttest.safe_open import read_regular


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
