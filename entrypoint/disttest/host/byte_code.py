"""Which byte code a process keeps for the next run.

Python accepts kept byte code for any source with the same modification second and the same size. An edit can follow a
run within that second, so a source that was saved just now must leave no byte code. Keeping none at all would have each
run compile its modules and pytest rewrite each plugin again: 0.3 of 0.87 s with 22,000 lines and eight plugins.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from disttest.host.loaded import loaded
from disttest.limits import SETTLED_SOURCE_S


# `_write_pyc` is private, and importlib's writer has no setting for this: both are wrapped in place.
def keep_only_of_settled_sources() -> None:
    """Stop this process and its forks from writing byte code of sources that were saved in the last seconds."""
    rewrite = loaded("_pytest.assertion.rewrite")
    write_rewritten = getattr(rewrite, "_write_pyc", None)
    # A pytest without this function: its byte code cannot be controlled, so none is kept.
    if write_rewritten is None:
        sys.dont_write_bytecode = True
        return
    setattr(rewrite, "_write_pyc", _looked_after(write_rewritten))  # noqa: B010 - no module for mypy
    SourceFileLoader.set_data = _set_data(SourceFileLoader.set_data)  # type: ignore[method-assign]


def is_settled(source: str) -> bool:
    """Return whether a file was saved so long ago that a later save gets another time stamp."""
    with contextlib.suppress(OSError):
        # the clock of the file system; called for each module of a run
        age_s = time.time() - os.stat(source).st_mtime  # noqa: TID251, PTH116
        return age_s >= SETTLED_SOURCE_S
    return False


def _looked_after(write: Callable[..., bool]) -> Callable[..., bool]:
    """Wrap pytest's writer of rewritten modules."""

    def write_settled(state: Any, code: CodeType, *rest: Any) -> bool:
        return is_settled(code.co_filename) and write(state, code, *rest)

    return write_settled


def _set_data(write: Callable[..., None]) -> Callable[..., None]:
    """Wrap importlib's writer of byte code."""

    def set_data(loader: SourceFileLoader, path: str, data: bytes, **more: Any) -> None:
        if is_settled(_source_of(path)):
            write(loader, path, data, **more)

    return set_data


def _source_of(byte_code: str) -> str:
    with contextlib.suppress(ValueError):
        return importlib.util.source_from_cache(byte_code)
    return ""
