"""Libraries that this process has imported: what is asked of them must not import them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def loaded(name: str) -> Any:
    """The module, if its import is complete; else None.

    A thread may be at it, as NCCL's watchdog, which imports ``torch._dynamo`` when it has found an error: the module
    is in ``sys.modules`` then, and most of its names are not in it.
    """
    module = sys.modules.get(name)
    return None if isinstance(module, ModuleType) and _is_being_imported(module) else module


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def reset_compiler() -> None:
    """Forget compiled code, if anything was compiled."""
    if dynamo := loaded("torch._dynamo"):
        dynamo.reset()
