"""Context variables of the main thread."""

from __future__ import annotations

import contextvars
from typing import Any

from disttest.runtime.rank.facet import MISSING, Facet, Values, change

# Context variables of decimal and NumPy, which are created on first use.
_OF_OTHER_FACETS = {"decimal_context", "format_options", "numpy.ufunc.extobj"}
_taken: set[contextvars.ContextVar[Any]] = set()


def take(variables: set[contextvars.ContextVar[Any]]) -> None:
    """Exclude these variables, because another facet covers them."""
    _taken.update(variables)


def _read() -> Values:
    return {
        variable: value
        for variable, value in contextvars.copy_context().items()
        if variable not in _taken and variable.name not in _OF_OTHER_FACETS and not _is_spent(variable, value)
    }


def _is_spent(variable: contextvars.ContextVar[Any], value: Any) -> bool:
    """Whether torch created the variable while compiling and left it empty.

    Since torch 2.13 each compiled function creates some for patches of settings and for active calls, and unsets none.
    """
    is_torchs = variable.name == "_vt_active_calls" or variable.name.partition(".ConfigPatch[")[1]
    return bool(is_torchs) and value in ((), set())


def _restore(variable: contextvars.ContextVar[Any], then: Any) -> bool:
    # Only the token of its setter can unset a context variable.
    if then is MISSING:
        return False
    variable.set(then)
    return True


FACETS = (Facet("context variable", _read, _restore, change),)
