"""What test files that are scripts, too, take for granted: torch's are started as ``python FILE``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

MAIN_MODULE = "--use-main-module"
"""How torch's ``python FILE --use-pytest`` tells the conftest of its repository that the file is ``__main__``."""


def find_siblings(path: Path) -> None:
    """Put the folder of a script where ``python FILE`` has it: first, and for good, since tests import late."""
    folder = str(path.parent)
    if folder not in sys.path and b"__main__" in path.read_bytes():
        sys.path.insert(0, folder)


def for_other_processes(arguments: Sequence[object]) -> Iterator[str]:
    """Pytest's arguments for a process of which the test file is not ``__main__``."""
    return (str(word) for word in arguments if str(word) != MAIN_MODULE)
