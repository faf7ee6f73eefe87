"""Kinds of findings of the sanitizer ``race``."""

from __future__ import annotations

from enum import StrEnum


class RaceKind(StrEnum):
    """Access between the issue of a call and the wait for it; the value is its word in results and reports."""

    OUTPUT_READ = "output-read"
    """A tensor that the call writes was read."""
    OUTPUT_WRITTEN = "output-written"
    """A tensor that the call writes was written."""
    INPUT_WRITTEN = "input-written"
    """A tensor that the call only reads was written."""
    STORAGE_FREED = "storage-freed"
    """Memory that the call uses was freed or moved."""
