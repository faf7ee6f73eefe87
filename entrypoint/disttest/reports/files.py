"""The one place where a report reaches the disk: all of it or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: str | Callable[[BinaryIO], None]) -> Path:
    """Write beside ``path`` and rename it into place, so that no reader ever sees half a report.

    Args:
        path: the report.
        content: its text; or what writes it piece by piece, so that a large one is never in memory as a whole.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode("utf-8", errors="replace"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
