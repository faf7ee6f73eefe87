"""Which modules runs have imported that are worth keeping: their parent imports them too, so that the next run need not."""

from __future__ import annotations

import importlib
import mmap
import sys
from collections.abc import Iterable

_SIZE = 1 << 16
"""Bytes for names; what finds no room is not noted."""


class PartsBoard:
    """Names of modules, one a line, in memory that a process shares with its forks, and they with theirs.

    Two runs that end at once may write into each other's lines: what comes of it is no module, and later runs note theirs again.
    """

    def __init__(self) -> None:
        """Nothing is noted."""
        self._noted = mmap.mmap(-1, _SIZE)
        self.imported: tuple[str, ...] = ()
        """By :meth:`import_missing`, in this process."""
        self._refused: set[str] = set()

    def note(self, names: Iterable[str]) -> None:
        """Note those of the modules that this process has imported; the others see it at once."""
        known = self.noted()
        new = (name for name in names if name in sys.modules and name not in known)
        lines = "".join(f"{name}\n" for name in new).encode()
        end = self._end()
        if end + len(lines) < _SIZE:
            self._noted[end : end + len(lines)] = lines

    def noted(self) -> tuple[str, ...]:
        """All names, in the order in which they were noted."""
        return tuple(self._noted[: self._end()].decode(errors="replace").splitlines())

    def missing(self) -> tuple[str, ...]:
        """What is noted, and not imported here."""
        return tuple(name for name in self.noted() if name not in sys.modules and name not in self._refused)

    def import_missing(self) -> None:
        """Import it; what cannot be imported is not tried again."""
        for name in self.missing():
            try:
                importlib.import_module(name)
                self.imported += (name,)
            except Exception:  # noqa: BLE001 - a run that needs it says what is wrong with it
                self._refused.add(name)

    def _end(self) -> int:
        return self._noted.find(b"\0")
