"""What ranks have from the process that forks them. Living ranks are as new ones would be only while it has not changed."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from disttest.runtime.messages.protocol import Variables
from disttest.runtime.rank import hygiene
from disttest.runtime.rank.facets.facet import is_same
from disttest.runtime.rank.module_watch import ModuleWatch, Numbers

_NOT_INHERITED = frozenset({"child process", "thread", "timer"})


class Inheritance:
    """What forks of this process inherit, now."""

    def __init__(self, classes: Iterable[type]) -> None:
        self._facts = self._seen = _facts()
        """When ranks were forked, but for what they have been told since; and as they were seen last."""
        self._loaded = frozenset(sys.modules)
        self._modules = ModuleWatch(classes)
        self._numbers = Numbers(classes)

    def changed(self) -> str:
        """What a fork would inherit that it would not have inherited then, by name; empty if nothing."""
        now = self._seen = _facts()
        for kind in (now.keys() | self._facts.keys()) - {hygiene.ENVIRONMENT}:
            if not is_same(now.get(kind), self._facts.get(kind)):
                return kind
        new = sys.modules.keys() - self._loaded
        return f"import of {min(new)}" if new else self._modules.changed()

    def put_back(self) -> str:
        """In a fork, after a test: what it has changed in what it shares with its modules, by name; numbers are put back."""
        self._numbers.put_back()
        return self._modules.changed()

    def take_variables(self) -> Variables:
        """What was seen to have changed in the environment since it was asked last: living ranks can be told."""
        then, now = self._facts[hygiene.ENVIRONMENT], self._seen[hygiene.ENVIRONMENT]
        self._facts = {**self._facts, hygiene.ENVIRONMENT: now}
        names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        return tuple((name, now.get(name)) for name in names)


def _facts() -> hygiene.Facts:
    return {kind: values for kind, values in hygiene.read_facts().items() if kind not in _NOT_INHERITED}
