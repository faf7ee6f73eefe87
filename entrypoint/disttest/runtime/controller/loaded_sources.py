"""Sources of the modules that the tests have loaded, to predict the needs of the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_TORCHS_TESTS = "torch/testing/_internal/common_utils.py"
# Bytes; a larger source is data.
_LARGEST = 1 << 20


def sources_below(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the sources of loaded modules below ``root``, and those of torch's own tests."""
    for path in _files(sys.modules.values(), root):
        try:
            if path.stat().st_size <= _LARGEST:
                yield path, path.read_text(errors="replace")
        except OSError:
            # A module created by a program, or a deleted file.
            continue


def _files(modules: Iterable[object], root: Path) -> Iterator[Path]:
    # Strings, not paths: torch has two thousand modules, and a path for each takes longer than the rest of a small run.
    below = os.path.join(root, "")  # noqa: PTH118
    # A list first, because reading a lazy module's attributes may import others.
    for name in [getattr(module, "__file__", None) for module in list(modules)]:
        if isinstance(name, str) and name.endswith(".py"):
            # A virtual environment is often inside the project.
            mine = name.startswith(below) and "/site-packages/" not in name
            if mine or name.endswith(f"/{_TORCHS_TESTS}"):
                yield Path(name)
