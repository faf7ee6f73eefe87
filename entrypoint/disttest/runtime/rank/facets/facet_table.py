"""List of the facets, and those of them that can be read now.

A new kind of state is a row in a ``FACETS`` tuple of one of these modules, or a new module with a line here.
"""

from __future__ import annotations

import importlib
import sys
from functools import lru_cache
from typing import Any

from disttest.plugin_manager import plugin_manager
from disttest.runtime.rank.facets.facet import Facet, Values

# Library -> module with its facets, imported once the library is loaded. State is restored in this order.
_MODULES = (
    ("sys", "process_state"),
    ("sys", "monkeypatches"),
    ("sys", "interpreter"),
    ("sys", "libraries"),
    ("numpy", "numpy_state"),
    ("torch", "torch_flags"),
    ("torch.utils._config_module", "torch_config"),
    ("torch.distributed", "process_groups"),
    # Loaded in ranks on GPUs only; elsewhere it would cost time and find nothing.
    ("disttest.runtime.rank.gpu_state", "cuda_flags"),
    ("sys", "context"),
)


def loaded_facets() -> tuple[Facet, ...]:
    """List the facets of all loaded libraries, and those of plugins."""
    core = _facets_of(tuple([module for library, module in _MODULES if library in sys.modules]))
    plugins = plugin_manager()
    # Called several times for each test, so a run without such plugins takes the short way.
    if not plugins.has("disttest_state_facets"):
        return core
    found = plugins.items("disttest_state_facets", Facet)
    return (*core, *(_guarded(name, facet) for name, facet in found))


_errors: list[str] = []


def take_facet_errors() -> str:
    """Return the errors of plugins' facets since the last call; empty if there were none."""
    told = "\n".join(dict.fromkeys(_errors))
    _errors.clear()
    return told


def _guarded(name: str, facet: Facet) -> Facet:
    """Wrap a plugin's facet so that its exceptions are kept.

    A facet that cannot be read restores nothing, and that must not go unnoticed.
    """

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
