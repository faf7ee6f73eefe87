"""Delete results of old runs, if the user limits their number."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from disttest.results.directory import DirectoryInUse, no_run_writes, short_path
from disttest.results.earlier_runs import earlier_results


def remove_old(path: Path, keep: int, say: Callable[[str], None]) -> None:
    """Delete all but the newest ``keep`` earlier results of a results directory.

    Args:
        path: directory of a run, which does not count.
        keep: number of earlier results to keep.
        say: receives one line about results that cannot be deleted; the next run tries again.
    """
    for folder in earlier_results(path)[keep:]:
        try:
            with no_run_writes(folder):
                shutil.rmtree(folder)
        except (DirectoryInUse, FileNotFoundError):
            # Reports are being written into it, or another run deletes it.
            continue
        except OSError as error:
            say(f"{short_path(folder)} cannot be deleted (--keep-results {keep}): {error.strerror}")
