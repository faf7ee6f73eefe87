"""Objects that the garbage collector ignores (:func:`gc.freeze`). Their memory pages stay shared with forks."""

from __future__ import annotations

import gc

_OF_PYTHON = gc.get_freeze_count()
"""Number of objects that are frozen from the start. Python 3.12 starts with some hundred."""


def is_frozen() -> bool:
    """Return whether this process, or the process that it is a fork of, has frozen its objects."""
    return gc.get_freeze_count() > _OF_PYTHON
