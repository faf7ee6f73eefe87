"""Shared list of modules that runs have imported: their parent imports them for the next run."""

from __future__ import annotations

import importlib
import mmap
import sys
from collections.abc import Iterable

_SIZE = 1 << 16
"""Bytes for names; names that do not fit are dropped."""


class PartsBoard:
    """Names of modules, one a line, in memory that a process shares with all its forks.

    Two runs that end at the same time may overwrite each other's lines. A garbled line names no module, and later runs
    note theirs again.
    """

    def __init__(self) -> None:
        """Create an empty board."""
        self._noted = mmap.mmap(-1, _SIZE)
        self.imported: tuple[str, ...] = ()
        """Names imported by :meth:`import_missing` in this process."""
        self._refused: set[str] = set()

    def note(self, names: Iterable[str]) -> None:
        """Note those of the modules that this process has imported; the other processes see them immediately."""
        known = self.noted()
        new = (name for name in names if name in sys.modules and name not in known)
        lines = "".join(f"{name}\n" for name in new).encode()
        end = self._end()
        if end + len(lines) < _SIZE:
            self._noted[end : end + len(lines)] = lines

    def noted(self) -> tuple[str, ...]:
        """Return all names, in the order in which they were noted."""
        return tuple(self._noted[: self._end()].decode(errors="replace").splitlines())

    def missing(self) -> tuple[str, ...]:
        """Return the noted names that this process has not imported."""
        return tuple(name for name in self.noted() if name not in sys.modules and name not in self._refused)

    def import_missing(self) -> None:
        """Import the missing modules; one that cannot be imported is not tried again."""
        for name in self.missing():
            try:
                importlib.import_module(name)
                self.imported += (name,)
            except Exception:  # noqa: BLE001 - a run that needs it reports the error
                self._refused.add(name)

    def _end(self) -> int:
        return self._noted.find(b"\0")
