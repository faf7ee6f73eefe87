"""Add the user's source line to stacks: below the innermost frame of user code in each thread, as Python does."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

from disttest.results.hang_findings import is_library

_FRAME = re.compile(r'^  File "([^"]+)", line (\d{1,9}) in ')
# Bytes of the largest file that is read; larger files are not written by hand.
_MOST_READ = 4 * 1024 * 1024
_LONGEST = 200


def with_code(stacks: str) -> str:
    """Add source lines while the files are available: reports are read on other machines."""
    return "\n\n".join(_with_code(thread) for thread in stacks.split("\n\n"))


def _with_code(thread: str) -> str:
    lines = thread.splitlines()
    for place, frame in enumerate(map(_FRAME.match, lines), 1):
        if frame is not None and not is_library(frame[1]):
            code = _code(Path(frame[1]), int(frame[2]))
            return "\n".join([*lines[:place], *([f"    {code}"] if code else []), *lines[place:]])
    return thread


def _code(file: Path, line: int) -> str:
    try:
        if not file.is_file() or file.stat().st_size > _MOST_READ:
            return ""
    # A broken rank may have written anything as the path.
    except (OSError, ValueError):
        return ""
    linecache.checkcache(str(file))
    return linecache.getline(str(file), line).strip()[:_LONGEST]
