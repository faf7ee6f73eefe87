"""What the garbage collector leaves alone (:func:`gc.freeze`): pages of such objects stay shared with forks."""

from __future__ import annotations

import gc

_OF_PYTHON = gc.get_freeze_count()
"""Python 3.12 begins with some hundred."""


def is_frozen() -> bool:
    """Whether this process has frozen what it had, or the one whose fork it is."""
    return gc.get_freeze_count() > _OF_PYTHON
