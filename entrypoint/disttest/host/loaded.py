"""Libraries that this process has imported: what is asked of them must not import them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_GRAPHS = "torch._inductor.cudagraph_trees"
"""Where there is CUDA, ``torch._dynamo.reset`` imports it: five hundred modules in each rank, a second of a processor, to forget
what only that module can have made."""


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
        with stand_in(sys.modules, _GRAPHS, _Nothing(_GRAPHS)):
            dynamo.reset()


@contextmanager
def stand_in(names: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """Have a name mean this while the context is open, if it means nothing yet; what comes in its place meanwhile stays."""
    mine = names.setdefault(name, value) is value
    try:
        yield
    finally:
        if mine and names.get(name) is value:
            del names[name]


class _Nothing(ModuleType):
    """A module of which every function does nothing."""

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda: None
