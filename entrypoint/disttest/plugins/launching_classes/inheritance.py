"""State that ranks inherit from the process that forks them. Living ranks equal new ones only while it is unchanged."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from disttest.runtime.messages.protocol import Variables
from disttest.runtime.rank import state_snapshot
from disttest.runtime.rank.facet import is_same
from disttest.runtime.rank.loaded_facets import ENVIRONMENT
from disttest.runtime.rank.module_watch import ModuleWatch, Numbers

_NOT_INHERITED = frozenset({"child process", "thread", "timer"})


class Inheritance:
    """The state that forks of this process inherit."""

    def __init__(self, classes: Iterable[type]) -> None:
        self._facts = self._seen = _facts()
        """State when the ranks were forked, updated by later notifications; and the state seen last."""
        self._loaded = frozenset(sys.modules)
        self._modules = ModuleWatch(classes)
        self._numbers = Numbers(classes)

    def changed(self) -> str:
        """Name a difference between the state that a fork would inherit now and then; empty if there is none."""
        now = self._seen = _facts()
        for kind in (now.keys() | self._facts.keys()) - {ENVIRONMENT}:
            if not is_same(now.get(kind), self._facts.get(kind)):
                return kind
        new = sys.modules.keys() - self._loaded
        return f"import of {min(new)}" if new else self._modules.changed()

    def put_back(self) -> str:
        """Name a change to shared modules that a test made in this fork, and restore numbers."""
        self._numbers.put_back()
        return self._modules.changed()

    def take_variables(self) -> Variables:
        """Return the changes of environment variables since the last call, which living ranks can be notified of."""
        then, now = self._facts[ENVIRONMENT], self._seen[ENVIRONMENT]
        self._facts = {**self._facts, ENVIRONMENT: now}
        names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        return tuple((name, now.get(name)) for name in names)


def _facts() -> state_snapshot.Facts:
    return {
        kind: values for kind, values in state_snapshot.read_state().items() if kind not in _NOT_INHERITED
    }
