"""The kinds of state that can be read now: the environment, and the facets of plugins whose library is loaded."""

from __future__ import annotations

import os
import sys
from functools import cache, lru_cache
from typing import Any

from disttest.plugin_manager import plugin_manager
from disttest.runtime.rank.facet import MISSING, Facet, FacetSource, Values, change

ENVIRONMENT = "environment"
"""The facet whose values are the environment variables, by name; both are bytes."""
_BUILT_IN = "disttest."
# pytest changes the first in each phase of a test, torch's compiler the second: an address in this process.
_NOT_OF_TESTS = (b"PYTEST_CURRENT_TEST", b"_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR")
_errors: list[str] = []


def loaded_facets() -> tuple[Facet, ...]:
    """List the facets of all loaded libraries. State is restored in this order."""
    loaded = tuple(source.library in sys.modules for _, source in _sources())
    # Cached by which libraries are loaded: a test may import one, whose state the next look then includes.
    return _facets_of(loaded)


def take_facet_errors() -> str:
    """Return the errors of installed plugins' facets since the last call; empty if there were none."""
    told = "\n".join(dict.fromkeys(_errors))
    _errors.clear()
    return told


@cache
def _sources() -> list[tuple[str, FacetSource]]:
    return plugin_manager().items("disttest_state_facets", FacetSource)


@lru_cache
def _facets_of(loaded: tuple[bool, ...]) -> tuple[Facet, ...]:
    facets = [Facet(ENVIRONMENT, _environment, _restore_variable, _describe_variable)]
    for is_loaded, (plugin, source) in zip(loaded, _sources(), strict=True):
        for facet in source.load() if is_loaded else ():
            is_taken = any(other.kind == facet.kind for other in facets)
            facets.append(_refused(plugin, facet) if is_taken else _guarded(plugin, facet))
    return tuple(facets)


def _environment() -> Values:
    # Raw bytes, which os.environ does not offer (Python 3.11 to 3.13): decoding each variable for each test would take
    # longer than everything else here.
    values = dict(os.environ._data)  # type: ignore[attr-defined]  # noqa: SLF001, TID251
    for name in _NOT_OF_TESTS:
        values.pop(name, None)
    return values


def _describe_variable(what: str, now: Any, then: Any) -> str:
    # torch's compiler sets such variables to its default folder, or to one below it.
    is_of_compiler = then is MISSING and what.endswith("_CACHE_DIR") and b"/torchinductor_" in now
    return "" if is_of_compiler else change(what, now, then)


def _restore_variable(name: bytes, then: Any) -> bool:
    if then is MISSING:
        os.environb.pop(name, None)
    else:
        os.environb[name] = then
    return True


def _refused(plugin: str, facet: Facet) -> Facet:
    """Replace a facet whose name another one has: values are kept by name, so one would restore those of the other."""
    error = f"plugin {plugin}: two facets have the name {facet.kind!r}; give each another name, or join them"

    def read() -> Values:
        # At each reading, so that no test passes unrestored.
        _errors.append(error)
        return {}

    return Facet(f"{facet.kind} of {plugin}", read, lambda _name, _then: False)


def _guarded(plugin: str, facet: Facet) -> Facet:
    """Wrap the facet of an installed plugin so that its exceptions are kept.

    A facet that cannot be read restores nothing, and that must not go unnoticed. The built-in facets fail only where a test
    has replaced what they read, and this is a finding about the test.
    """
    if plugin.startswith(_BUILT_IN):
        return facet

    def read() -> Values:
        try:
            return facet.read()
        except Exception as error:  # noqa: BLE001
            _errors.append(_words(plugin, facet, "read", error))
            return {}

    def restore(value: Any, then: Any) -> bool:
        try:
            return facet.restore(value, then)
        except Exception as error:  # noqa: BLE001
            _errors.append(_words(plugin, facet, "restore", error))
            return False

    return facet._replace(read=read, restore=restore)


def _words(plugin: str, facet: Facet, what: str, error: Exception) -> str:
    return f"plugin {plugin} failed to {what} its facet {facet.kind!r}: {type(error).__name__}: {error}"
