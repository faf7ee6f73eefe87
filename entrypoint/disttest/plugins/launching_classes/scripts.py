"""Collects test files that are scripts, too: those of torch are started as ``python FILE``."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from disttest.runtime.controller.leaving_imports import report_of, staying


def find_siblings(path: Path) -> None:
    """Put the folder of a script where ``python FILE`` has it: first, and for good, since tests import late."""
    folder = str(path.parent)
    if folder not in sys.path and b"__main__" in path.read_bytes():
        sys.path.insert(0, folder)


def collect_script(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Around the collection of a file: it may import its neighbours, and may end the process while it is imported."""
    if isinstance(collector, pytest.Module):
        find_siblings(collector.path)
    try:
        with staying():
            return (yield)
    except SystemExit as leaving:
        return report_of(collector, leaving)
