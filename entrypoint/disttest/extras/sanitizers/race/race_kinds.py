"""The kinds of findings of the sanitizer of races."""

from __future__ import annotations

from enum import StrEnum


class RaceKind(StrEnum):
    """What was done between the issue of a call and the wait for it; the value is its word in results and reports."""

    OUTPUT_READ = "output-read"
    """What the call writes was read."""
    OUTPUT_WRITTEN = "output-written"
    """What the call writes was written."""
    INPUT_WRITTEN = "input-written"
    """What the call only reads was written."""
    STORAGE_FREED = "storage-freed"
    """The memory that the call uses was freed or moved."""
