"""Copies: processes forked by a test, a fixture or a hook that return into pytest's own code."""

from __future__ import annotations

import os

# Bound at import: tests may monkeypatch os.getpid.
_getpid = os.getpid
# Each fork inherits this number. Only `process._fork` notes a new one, so that all other forks differ from
# it.
_original_pid = _getpid()


def note_original() -> None:
    """Mark this process as an original: a program that has started, or a fork made by disttest."""
    global _original_pid
    _original_pid = _getpid()


def is_copy() -> bool:
    """Return whether this process is a copy: its parent continues the same work."""
    return _getpid() != _original_pid
