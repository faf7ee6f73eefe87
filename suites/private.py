"""The way to names that torch does not promise: a test that needs one which is gone is skipped, by name."""

from __future__ import annotations

import importlib
from typing import Any

import pytest


def private(path: str) -> Any:
    """Return the object of a dotted path; skip the test where this torch lacks it."""
    found = find(path)
    if found is _NOTHING:
        import torch

        pytest.skip(f"torch {torch.__version__} has no {path}, which this test looks through")
    return found


def has(path: str) -> bool:
    """Whether torch has the name."""
    return find(path) is not _NOTHING


_NOTHING = object()


def find(path: str) -> Any:
    """Import the longest prefix of the path that is a module, then follow the attributes."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for name in parts[length:]:
            try:
                found = getattr(found, name, _NOTHING)
            except ImportError:  # torch imports some of its modules when they are first asked for
                return _NOTHING
            if found is _NOTHING:
                return _NOTHING
        return found
    return _NOTHING
