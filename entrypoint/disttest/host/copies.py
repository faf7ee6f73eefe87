"""Copies: processes that a test, a fixture or a hook forked, and that come back into pytest."""

from __future__ import annotations

import os

# Bound at import: tests may monkeypatch os.getpid.
_getpid = os.getpid
_original_pid = _getpid()


def note_original() -> None:
    """Take this process for an original: a program that starts, or a fork that disttest has made."""
    global _original_pid
    _original_pid = _getpid()


def is_copy() -> bool:
    """Whether this process is a copy: its parent goes on with the same work."""
    return _getpid() != _original_pid
