"""Where a run keeps its files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from disttest.results.directory import Home


class Workplace(NamedTuple):
    """Where a run keeps its files."""

    home: Home
    """The results directory."""
    scratch: Path

    @property
    def results(self) -> Path:
        """The results directory as it stands now."""
        return self.home.now()
