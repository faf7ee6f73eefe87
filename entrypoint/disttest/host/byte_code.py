"""Which byte code a process keeps for the next one.

Python takes kept byte code for that of any source with the same second of change and the same size. An edit can follow the
run before it within that second, so a source that has just been saved must leave none; without any, each run would
compile all that it imports, and pytest would rewrite each plugin anew.
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


def keep_only_of_settled_sources() -> None:
    """Have this process and its forks write no byte code of a source that was saved a moment ago."""
    rewrite = loaded("_pytest.assertion.rewrite")
    write_rewritten = getattr(rewrite, "_write_pyc", None)
    if write_rewritten is None:  # a pytest whose byte code we cannot look after: it keeps none
        sys.dont_write_bytecode = True
        return
    setattr(rewrite, "_write_pyc", _looked_after(write_rewritten))  # noqa: B010 - no module for mypy
    SourceFileLoader.set_data = _set_data(SourceFileLoader.set_data)  # type: ignore[method-assign]


def is_settled(source: str) -> bool:
    """Whether a file has not been saved for so long that what is saved from now on has another time."""
    with contextlib.suppress(OSError):
        age_s = time.time() - os.stat(source).st_mtime  # noqa: TID251, PTH116 - of the clock of files; each module of a run
        return age_s >= SETTLED_SOURCE_S
    return False


def _looked_after(write: Callable[..., bool]) -> Callable[..., bool]:
    """pytest's writer of rewritten modules."""

    def write_settled(state: Any, code: CodeType, *rest: Any) -> bool:
        return is_settled(code.co_filename) and write(state, code, *rest)

    return write_settled


def _set_data(write: Callable[..., None]) -> Callable[..., None]:
    """importlib's writer of byte code."""

    def set_data(loader: SourceFileLoader, path: str, data: bytes, **more: Any) -> None:
        if is_settled(_source_of(path)):
            write(loader, path, data, **more)

    return set_data


def _source_of(byte_code: str) -> str:
    with contextlib.suppress(ValueError):
        return importlib.util.source_from_cache(byte_code)
    return ""
