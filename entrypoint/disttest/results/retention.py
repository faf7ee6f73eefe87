"""How many earlier runs a user keeps: older ones are deleted, if that was asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from disttest.results.directory import DirectoryInUse, no_run_writes, short_path
from disttest.results.earlier_runs import kept_aside


def remove_old(path: Path, keep: int, say: Callable[[str], None]) -> None:
    """Delete what runs before the newest ``keep`` have left of a results directory.

    Args:
        path: the directory of a run, which is not counted.
        keep: how many earlier runs stay.
        say: told in a line what cannot be deleted; the next run tries again.
    """
    for folder in kept_aside(path)[keep:]:
        try:
            with no_run_writes(folder):
                shutil.rmtree(folder)
        except (DirectoryInUse, FileNotFoundError):
            continue  # reports are written into it; or another run deletes it
        except OSError as error:
            say(f"{short_path(folder)} cannot be deleted (--keep-results {keep}): {error.strerror}")
