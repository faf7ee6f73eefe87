"""Settings of torch.compile: modules whose values a test may override.

From torch 2.12 on each override is a context variable; before, it is an attribute.
"""

from __future__ import annotations

import contextvars
import sys
from typing import Any

from torch.utils import _config_module

from disttest.host.imports import loaded
from disttest.plugins.state_facets import context
from disttest.runtime.rank.facet import MISSING, Facet, Values, is_same

_MODULES = (
    "torch._dynamo.config",
    "torch._export.config",
    "torch._functorch.config",
    "torch._inductor.config",
    "torch._inductor.config_comms",
    "torch.compiler.config",
    "torch.distributed.config",
    "torch.fx.experimental._config",
)
# torch marks a setting without an override with this private object.
_UNSET = _config_module._UNSET_SENTINEL
# Setting -> torch's entry for it, of the modules seen so far.
_entries: dict[str, Any] = {}
# Context variable -> the setting that it overrides.
_variables: dict[contextvars.ContextVar[Any], str] = {}
# Settings whose override is an attribute.
_attributes: list[str] = []
_learned: set[str] = set()


def _read() -> Values:
    for name in _MODULES:
        if name not in _learned and (module := loaded(name)):
            _learn(name, module)
    context_now = contextvars.copy_context().items() if _variables else ()
    overrides = {_variables[variable]: value for variable, value in context_now if variable in _variables}
    overrides |= {name: _entries[name].user_override for name in _attributes}
    return {name: value for name, value in overrides.items() if _is_override(name, value)}


def _is_override(name: str, value: Any) -> bool:
    """Whether an override differs from the default: reading a list, a set or a dict creates a copy as override."""
    return value is not _UNSET and not is_same(value, _entries[name].default)


def _learn(name: str, module: Any) -> None:
    _learned.add(name)
    for key, entry in module._config.items():
        setting = f"{name}.{key}"
        _entries[setting] = entry
        if isinstance(entry.user_override, contextvars.ContextVar):
            _variables[entry.user_override] = setting
        else:
            _attributes.append(setting)
    # The other variables say whether values computed from the settings are up to date.
    context.take({*_variables, *(v for v in vars(module).values() if isinstance(v, contextvars.ContextVar))})


def _restore(name: str, then: Any) -> bool:
    module_name = next(each for each in _learned if name.startswith(f"{each}."))
    module: Any = sys.modules[module_name]
    setting = name.removeprefix(f"{module_name}.")
    # Assign even if it is unset afterwards, so that the module notices a change.
    setattr(module, setting, getattr(module, setting) if then is MISSING else then)
    if then is not MISSING:
        return True
    entry = _entries[name]
    if isinstance(entry.user_override, contextvars.ContextVar):
        entry.user_override.set(_UNSET)
    else:
        entry.user_override = _UNSET
    return True


FACETS = (Facet("configuration", _read, _restore),)
