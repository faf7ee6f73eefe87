"""Libraries that this process may have imported: functions that use them only if they are already imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_GRAPHS = "torch._inductor.cudagraph_trees"
"""Module that ``torch._dynamo.reset`` imports where CUDA is available: five hundred modules in each rank, a second of
CPU time, to reset state that only that module can have created.
"""


def loaded(name: str) -> Any:
    """Return the module if its import is complete; otherwise None."""
    # A thread may be importing it: NCCL's watchdog imports ``torch._dynamo`` when it finds an error. The module is in
    # ``sys.modules`` then, without most of its names.
    module = sys.modules.get(name)
    return None if isinstance(module, ModuleType) and _is_being_imported(module) else module


# `_initializing` is how importlib itself marks a module whose import is not complete.
def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def reset_compiler() -> None:
    """Discard compiled code, if there is any."""
    if dynamo := loaded("torch._dynamo"):
        with replaced_entry(sys.modules, _GRAPHS, _Nothing(_GRAPHS)):
            dynamo.reset()


@contextmanager
def replaced_entry(names: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """Define a name while the context is open, unless it is defined; a value that replaces it meanwhile stays."""
    mine = names.setdefault(name, value) is value
    try:
        yield
    finally:
        if mine and names.get(name) is value:
            del names[name]


class _Nothing(ModuleType):
    """A module whose functions all do nothing."""

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda: None
