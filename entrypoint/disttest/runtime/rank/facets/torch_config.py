"""Settings of torch.compile: modules whose values a test may override. Each override is a context variable."""

from __future__ import annotations

import contextvars
import sys
from typing import Any

from torch.utils import _config_module

from disttest.host.loaded import loaded
from disttest.runtime.rank.facets import context
from disttest.runtime.rank.facets.facet import MISSING, Facet, Values

_MODULES = ("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config")
_UNSET = _config_module._UNSET_SENTINEL
_learned: set[str] = set()
_settings: dict[contextvars.ContextVar[Any], str] = {}
"""Variable -> the setting that it overrides."""


def _read() -> Values:
    for name in _MODULES:
        if name not in _learned and (module := loaded(name)):
            _learn(name, module)
    overridden = contextvars.copy_context().items() if _settings else ()
    return {
        _settings[variable]: value
        for variable, value in overridden
        if variable in _settings and value is not _UNSET
    }


def _learn(name: str, module: Any) -> None:
    _settings.update({entry.user_override: f"{name}.{key}" for key, entry in module._config.items()})
    _learned.add(name)
    # The others say whether what is computed from the settings is up to date.
    context.take({*_settings, *(v for v in vars(module).values() if isinstance(v, contextvars.ContextVar))})


def _restore(name: str, then: Any) -> bool:
    module_name, _, setting = name.rpartition(".")
    module: Any = sys.modules[module_name]
    setattr(
        module, setting, getattr(module, setting) if then is MISSING else then
    )  # the module notes a change
    if then is MISSING:
        module._config[setting].user_override.set(_UNSET)
    return True


FACETS = (Facet("configuration", _read, _restore),)
