"""The one place where a report reaches the disk: all of it or nothing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from disttest.safe_open import create_file


def write_whole(path: Path, content: str | Callable[[BinaryIO], None]) -> Path:
    """Write beside ``path`` and rename it into place, so that no reader ever sees half a report.

    Args:
        path: the report.
        content: its text; or what writes it piece by piece, so that a large one is never in memory as a whole.
    """
    # Whoever else can write there cannot know its name, nor lead it elsewhere by a link.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with os.fdopen(create_file(temporary), "wb") as file:
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
