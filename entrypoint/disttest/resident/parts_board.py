"""Which large parts of torch runs have imported: their parent imports them too, so that the next run need not."""

from __future__ import annotations

import importlib
import mmap
import sys
from collections.abc import Sequence


class PartsBoard:
    """A byte for each part, in memory that a process shares with its forks, and they with theirs."""

    def __init__(self, parts: Sequence[str]) -> None:
        """Nothing is noted.

        Args:
            parts: names of modules.
        """
        self._parts = tuple(parts)
        self._noted = mmap.mmap(-1, max(1, len(self._parts)))

    def note(self) -> None:
        """Note what this process has imported; the others see it at once."""
        for number, part in enumerate(self._parts):
            if part in sys.modules:
                self._noted[number] = 1

    def missing(self) -> tuple[str, ...]:
        """What is noted, and not imported here."""
        return tuple(
            part for number, part in enumerate(self._parts) if self._noted[number] and part not in sys.modules
        )

    def import_missing(self) -> None:
        """Import it; what cannot be imported is not noted any more."""
        for part in self.missing():
            try:
                importlib.import_module(part)
            except Exception:  # noqa: BLE001 - a run that needs it says what is wrong with it
                self._noted[self._parts.index(part)] = 0
