"""Which facets there are, and which of them can be read now.

A new kind of state is a row in a ``FACETS`` of one of these modules, or a module of its own and a line here.
"""

from __future__ import annotations

import importlib
import sys
from functools import lru_cache
from typing import Any

from disttest.plugin_manager import plugin_manager
from disttest.runtime.rank.facets.facet import Facet, Values

# Name of a library -> the module with its facets, imported once the library is; put back in this order.
_MODULES = (
    ("sys", "process_state"),
    ("sys", "monkeypatches"),
    ("sys", "interpreter"),
    ("sys", "libraries"),
    ("numpy", "numpy_state"),
    ("torch", "torch_flags"),
    ("torch.utils._config_module", "torch_config"),
    ("torch.distributed", "process_groups"),
    (
        "disttest.runtime.rank.gpu_state",
        "cuda_flags",
    ),  # loaded in ranks on GPUs only: elsewhere it would cost and say nothing
    ("sys", "context"),
)


def loaded_facets() -> tuple[Facet, ...]:
    """The facets of all libraries that are loaded, and those of plugins."""
    core = _facets_of(tuple([module for library, module in _MODULES if library in sys.modules]))
    plugins = plugin_manager()
    if not plugins.has("disttest_state_facets"):  # asked several times for each test
        return core
    found = plugins.items("disttest_state_facets", Facet)
    return (*core, *(_guarded(name, facet) for name, facet in found))


_errors: list[str] = []


def take_facet_errors() -> str:
    """The exceptions of plugins' facets since the last call, in words; empty if there were none."""
    told = "\n".join(dict.fromkeys(_errors))
    _errors.clear()
    return told


def _guarded(name: str, facet: Facet) -> Facet:
    """The facet of a plugin, whose exceptions are kept: one that cannot be read restores nothing, and must not do so unseen."""

    def read() -> Values:
        try:
            return facet.read()
        except Exception as error:  # noqa: BLE001
            _errors.append(_words(name, facet, "read", error))
            return {}

    def restore(value: Any, then: Any) -> bool:
        try:
            return facet.restore(value, then)
        except Exception as error:  # noqa: BLE001
            _errors.append(_words(name, facet, "restore", error))
            return False

    return facet._replace(read=read, restore=restore)


def _words(name: str, facet: Facet, what: str, error: Exception) -> str:
    return f"plugin {name} failed to {what} its facet {facet.kind!r}: {type(error).__name__}: {error}"


@lru_cache(maxsize=len(_MODULES) ** 2)
def _facets_of(modules: tuple[str, ...]) -> tuple[Facet, ...]:
    package = __name__.rpartition(".")[0]
    return tuple(
        facet for module in modules for facet in importlib.import_module(f"{package}.{module}").FACETS
    )
