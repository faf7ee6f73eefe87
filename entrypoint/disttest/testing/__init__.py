"""The public API for test authors: the world that a test runs in, and unittest bases under their established names.

Importing this package does not import torch; a name that needs torch imports it when it is first used.
``docs/testing-api.md`` describes each name and its differences from torch's.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any


def _homes() -> dict[str, str]:
    """Return each public name with its module, read from the stub file, which type checkers use, too."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_bytes())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_HOME_OF = _homes()
__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
