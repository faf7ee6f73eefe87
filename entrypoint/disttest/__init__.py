"""Distributed PyTorch tests in CI: one entrypoint that runs ranks, judges them and keeps their logs.

PYTEST_DONT_REWRITE: ranks that are forked from a process with this package loaded need no warning about that.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

__version__ = "0.1.0"

if "_pytest.assertion.rewrite" in sys.modules:
    from importlib.machinery import PathFinder

    class _AsWritten:
        """Finds our modules before pytest does, which rewrites the assertions of all that belongs to a plugin.

        Where it may not write byte code (``PYTHONDONTWRITEBYTECODE``, packages that belong to root, a new container), it
        would parse and compile 300 modules in each run.
        """

        @staticmethod
        def find_spec(
            name: str,
            path: Sequence[str] | None = None,
            target: object = None,  # noqa: ARG004
        ) -> ModuleSpec | None:
            return PathFinder.find_spec(name, path) if name.startswith(f"{__name__}.") else None

    sys.meta_path.insert(0, _AsWritten)
