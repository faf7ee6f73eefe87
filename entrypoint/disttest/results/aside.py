"""What an earlier run has left in a results directory is kept aside: beside it, or in it where it cannot be renamed."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path

from disttest.errors import UsageError
from disttest.results.journal import FILE_NAME

BEFORE = "unharmed"
"""The folder of a run that comes before the one of the directory, which begins only if that passes: ``disttest chaos``."""
_EARLIER = "earlier"
"""The folder of what is kept aside where the directory itself cannot be renamed."""


def keep_aside(path: Path) -> bool:
    """Keep aside what an earlier run has left in a results directory; False where that took the directory itself along.

    Raises:
        UsageError: the directory holds something that no run of ours has left.
    """
    journal = _journal_of(path)
    if journal is None:
        raise UsageError(
            f"results directory {path} holds files that no run of disttest has left: "
            "empty it, or choose another with --results"
        )
    written = datetime.datetime.fromtimestamp(journal.stat().st_mtime, tz=datetime.UTC)
    stamp = written.strftime("%Y%m%d-%H%M%S")
    target = _unused(path.with_name(f"{path.name}-{stamp}"))
    try:
        path.rename(target)
    except OSError:
        _move_inside(path, stamp)
        return True
    return False


def _journal_of(path: Path) -> Path | None:
    """What says that a directory is of a run of ours: its journal, or that of the run before it if there is nothing else."""
    own, before = path / FILE_NAME, path / BEFORE / FILE_NAME
    if own.exists():
        return own
    return before if left_in(path) == [before.parent] and before.is_file() else None


def left_in(path: Path) -> list[Path]:
    """What is in a results directory, apart from what was kept aside."""
    return [child for child in path.iterdir() if child.name != _EARLIER]


def _move_inside(path: Path, stamp: str) -> None:
    children = left_in(path)
    target = _unused(path / _EARLIER / stamp)
    target.mkdir(parents=True)
    for child in children:
        child.rename(target / child.name)


def _unused(path: Path) -> Path:
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(candidate for candidate in itertools.chain((path,), numbered) if not candidate.exists())
