"""Write a report to disk completely or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from disttest.safe_open import create_file


def write_whole(path: Path, content: str | Callable[[BinaryIO], None]) -> Path:
    """Write next to ``path`` and rename the file into place, so that no reader sees half a report.

    Args:
        path: the report.
        content: its text, or a function that writes it in pieces, so that a large one is never in memory as a whole.
    """
    # A random name, created without following links: another user of the directory can neither guess nor redirect it.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with os.fdopen(create_file(temporary), "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode("utf-8", errors="replace"))
            file.flush()
            # A rename can reach the disk before the content does.
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
