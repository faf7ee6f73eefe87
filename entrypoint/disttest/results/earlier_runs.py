"""Keep results of earlier runs: next to the results directory, or inside it if it cannot be renamed."""

from __future__ import annotations

import contextlib
import datetime
import glob
import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from disttest.errors import UsageError
from disttest.results.journal import FILE_NAME

BEFORE = "unharmed"
"""Folder of a preparatory run; the main run starts only if it passes."""
# Folder of earlier results if the directory itself cannot be renamed.
_EARLIER = "earlier"
# The file that keeps results out of a repository; it is not a part of a run.
IGNORED = ".gitignore"
_BEGIN = b'{"event":"'
"""The first bytes of every journal."""
# The file that a claim writes to see whether there is room; a killed command leaves it.
PROBE = ".writable"
_STAMP = "%Y%m%d-%H%M%S"
# Suffix of the name of earlier results.
_STAMPED = re.compile(r"(\d{8}-\d{6})(-\d+)?")


def keep_earlier_run(path: Path) -> Path:
    """Move the results of an earlier run into a folder of their own, and return it.

    The directory itself is renamed; where that is not possible, its content is moved.

    Raises:
        UsageError: the directory contains files that no disttest run has left.
    """
    journal = _journal_of(path)
    if journal is None:
        raise UsageError(
            f"results directory {path} contains files that are not from a disttest run: "
            "empty it, or choose another with --results"
        )
    stamp = _stamp(journal)
    target = _unused(path.with_name(f"{path.name}-{stamp}"))
    try:
        path.rename(target)
    # EBUSY for a mount point, EACCES where the parent folder belongs to another user.
    except OSError:
        return _move_inside(path, stamp)
    return target


def put_back(path: Path, earlier: Path | None) -> None:
    """Replace the content of a results directory by earlier results that :func:`keep_earlier_run` has moved, if any."""
    # The directory itself stays: its inode carries the lock of this run.
    for child in left_in(path):
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()
    if earlier is None:
        return
    for child in left_in(earlier):
        child.rename(path / child.name)
    # Results that an earlier claim has moved inside; they moved with their folder if it was renamed.
    if (older := earlier / _EARLIER).is_dir():
        older.rename(path / _EARLIER)
    shutil.rmtree(earlier)


def earlier_results(path: Path) -> list[Path]:
    """List the earlier results that :func:`keep_earlier_run` has moved away, newest first.

    Each is named for the time of its own journal: a user renames a folder to keep it.
    """
    found = [(ended_ns, folder) for folder, name in _beside(path) if (ended_ns := _ended_ns(folder, name))]
    return [folder for _, folder in sorted(found, reverse=True)]


def _beside(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield candidates with the part of the name that contains the time of the run."""
    prefix, inside = f"{path.name}-", path / _EARLIER
    for folder in path.parent.glob(f"{glob.escape(prefix)}*"):
        yield folder, folder.name.removeprefix(prefix)
    if inside.is_dir():
        for folder in inside.iterdir():
            yield folder, folder.name


def _ended_ns(folder: Path, name: str) -> int:
    """Return the end of the run that left a folder, in nanoseconds; 0 for other folders, or if it has vanished."""
    stamped = _STAMPED.fullmatch(name)
    # A link could lead the removal of old results to a folder of the user.
    if stamped is None or folder.is_symlink():
        return 0
    # Another run may delete it at the same time, or access is denied.
    with contextlib.suppress(OSError):
        journal = _journal_of(folder)
        if journal is not None and _stamp(journal) == stamped[1]:
            return journal.stat().st_mtime_ns
    return 0


def _stamp(journal: Path) -> str:
    # In UTC, because `earlier_results` compares the name with the journal again, perhaps in another time
    # zone.
    return datetime.datetime.fromtimestamp(journal.stat().st_mtime, tz=datetime.UTC).strftime(_STAMP)


def _journal_of(path: Path) -> Path | None:
    """Return the journal that identifies a results directory: its own, or that of a preparatory run alone."""
    own, before = path / FILE_NAME, path / BEFORE / FILE_NAME
    if _is_ours(own):
        return own
    # A preparatory run that failed leaves no journal of the main run.
    return before if left_in(path) == [before.parent] and before.is_file() else None


def _is_ours(journal: Path) -> bool:
    """Whether a run of disttest has left the file: other programs log events in files of this name, too."""
    if not journal.is_file():
        return False
    with journal.open("rb") as file:
        begun = file.read(len(_BEGIN))
    # A run that was killed at once has written no event.
    return begun == _BEGIN or (not begun and (journal.parent / IGNORED).exists())


def left_in(path: Path) -> list[Path]:
    """List the content of a results directory, without earlier results."""
    return [child for child in path.iterdir() if child.name not in (_EARLIER, IGNORED, PROBE)]


def _move_inside(path: Path, stamp: str) -> Path:
    children = left_in(path)
    target = _unused(path / _EARLIER / stamp)
    target.mkdir(parents=True)
    for child in children:
        child.rename(target / child.name)
    return target


def _unused(path: Path) -> Path:
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(candidate for candidate in itertools.chain((path,), numbered) if not candidate.exists())
