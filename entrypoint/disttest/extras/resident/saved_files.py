"""Find files saved below a folder by their times, which works on every file system and in containers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from disttest.extras.resident.touched import read_names

# inotify does not report writes of another machine or of a container's host. A scan of 1,000 files takes
# milliseconds.
_CONFIGURATION = frozenset({"pyproject.toml", "pytest.ini", "tox.ini", "setup.cfg"})
_NOT_SOURCES = frozenset({"__pycache__", "node_modules", "build", "dist", "site-packages"})
_SHARE = 20
"""Pause between two scans as a multiple of a scan's duration: at most 5 % of a processor, even in a large folder."""


class SavedFiles:
    """The Python files and settings below a folder, with paths relative to it."""

    def __init__(self, folder: Path, *, interval_s: float) -> None:
        """Scan for the first time.

        Args:
            folder: folder to scan with all folders below it, except hidden ones and virtual environments.
            interval_s: time between two scans; more in a large folder.
        """
        self._folder = folder
        self._least_s = interval_s
        self._seen: dict[Path, tuple[int, int]] = {}
        self.names: dict[Path, frozenset[str]] = {}
        self.interval_s = interval_s
        self.scan()

    def scan(self) -> tuple[Path, ...]:
        """Return the files that are new, changed or gone since the last scan."""
        began_s = time.monotonic()
        now = dict(_files(self._folder))
        saved = tuple(
            sorted(path for path in now.keys() | self._seen.keys() if now.get(path) != self._seen.get(path))
        )
        self.interval_s = max(self._least_s, _SHARE * (time.monotonic() - began_s))
        self._seen = now
        for path in saved:
            if path in now and path.suffix == ".py":
                self.names[path] = read_names(self._folder / path)
            else:
                self.names.pop(path, None)
        return saved


def _files(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Yield path below the folder, time and size of each relevant file."""
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_left_out(where, name)]
        for name in files:
            if name.endswith(".py") or name in _CONFIGURATION:
                try:
                    facts = os.stat(f"{where}/{name}")  # noqa: PTH116 - for all files, ten times a second
                except OSError:  # being replaced right now
                    continue
                yield Path(where, name).relative_to(folder), (facts.st_mtime_ns, facts.st_size)


def _is_left_out(where: str, name: str) -> bool:
    return name.startswith(".") or name in _NOT_SOURCES or Path(where, name, "pyvenv.cfg").exists()
