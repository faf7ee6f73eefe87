"""The results directory: claimed once per run; what an earlier run left is kept aside, never mixed."""

from __future__ import annotations

import datetime
from pathlib import Path

from disttest.errors import UsageError
from disttest.results.journal import FILE_NAME


def claim(path: Path) -> Path:
    """Make the directory ready for a new run and return its absolute path.

    An earlier run is renamed to ``<name>-<time of its journal>`` beside it; where that can not be done (a
    mounted volume), its content moves to ``earlier/<time>`` inside.

    Raises:
        UsageError: it can not be made or written, or holds something that no run of ours has left.
    """
    path = path.absolute()
    try:
        if path.is_dir() and any(child.name != "earlier" for child in path.iterdir()):
            _keep_aside(path)
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except OSError as error:
        raise UsageError(f"results directory {path} can not be used: {error.strerror}") from error
    return path


def short_path(path: Path) -> str:
    """The path as a user would type it here: relative if it lies below the working directory."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _keep_aside(path: Path) -> None:
    journal = path / FILE_NAME
    if not journal.exists():
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


def _move_inside(path: Path, stamp: str) -> None:
    inside = path / "earlier"
    children = [child for child in path.iterdir() if child != inside]
    target = _unused(inside / stamp)
    target.mkdir(parents=True)
    for child in children:
        child.rename(target / child.name)


def _unused(path: Path) -> Path:
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
