"""What ranks have from the process that forks them. Living ranks are as new ones would be only while it has not changed."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from disttest.runtime.rank import hygiene
from disttest.runtime.rank.facets.facet import is_same
from disttest.runtime.rank.module_watch import ModuleWatch

_NOT_INHERITED = frozenset({"child process", "thread", "timer"})


class Inheritance:
    """What forks of this process inherit, now."""

    def __init__(self, classes: Iterable[type]) -> None:
        self._facts = _facts()
        self._loaded = frozenset(sys.modules)
        self._modules = ModuleWatch(classes)

    def changed(self) -> str:
        """What a fork would inherit that it would not have inherited then, by name; empty if nothing."""
        now = _facts()
        for kind in now.keys() | self._facts.keys():
            if not is_same(now.get(kind), self._facts.get(kind)):
                return kind
        new = sys.modules.keys() - self._loaded
        return f"import of {min(new)}" if new else self._modules.changed()


def _facts() -> hygiene.Facts:
    return {kind: values for kind, values in hygiene.read_facts().items() if kind not in _NOT_INHERITED}
