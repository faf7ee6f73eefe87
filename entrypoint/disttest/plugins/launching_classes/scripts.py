"""Collection of test files that are scripts as well: torch's are started as ``python FILE``."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from disttest.runtime.controller.leaving_imports import report_of, staying


def find_siblings(path: Path) -> None:
    """Put the folder of a script first on the path, as ``python FILE`` does."""
    # It stays there, because tests import late.
    folder = str(path.parent)
    if folder not in sys.path and b"__main__" in path.read_bytes():
        sys.path.insert(0, folder)


def collect_script(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Wrap the collection of a file that may import neighbouring files, and may end the process during import."""
    if isinstance(collector, pytest.Module):
        find_siblings(collector.path)
    try:
        with staying():
            return (yield)
    except SystemExit as leaving:
        return report_of(collector, leaving)
