"""Distributed PyTorch tests in CI: one entry point that runs ranks, judges them and keeps their logs.

PYTEST_DONT_REWRITE: this word in a docstring stops pytest's warning that it can no longer rewrite the assertions of
a module. Ranks that are forked from a process with this package loaded would print it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

__version__ = "0.1.0"

# Only a process with pytest has its import hook; the command would import these modules for nothing.
if "_pytest.assertion.rewrite" in sys.modules:
    from importlib.machinery import PathFinder

    class _AsWritten:
        """A finder in front of pytest's import hook: it loads disttest's modules without assertion rewriting.

        pytest rewrites the assertions of all modules of a plugin's package. Where byte code cannot be written
        (``PYTHONDONTWRITEBYTECODE``, a package owned by root, a new container), it would parse and compile 300
        modules in each run.
        """

        # Importing all modules before pytest starts would cost the command the same, and would not help plain
        # pytest.
        @staticmethod
        def find_spec(
            name: str,
            path: Sequence[str] | None = None,
            target: object = None,  # noqa: ARG004
        ) -> ModuleSpec | None:
            return PathFinder.find_spec(name, path) if name.startswith(f"{__name__}.") else None

    sys.meta_path.insert(0, _AsWritten)
