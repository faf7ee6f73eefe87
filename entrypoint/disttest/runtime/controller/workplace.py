"""Directories of a run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from disttest.results.directory import Home


class Workplace(NamedTuple):
    """Directories of a run."""

    home: Home
    """The results directory."""
    scratch: Path

    @property
    def results(self) -> Path:
        """Current path of the results directory."""
        return self.home.now()
