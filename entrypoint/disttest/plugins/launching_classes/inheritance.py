"""State that ranks inherit from the process that forks them. Living ranks equal new ones only while it is unchanged."""

from __future__ import annotations

import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from disttest.runtime.messages.protocol import Variables
from disttest.runtime.rank import state_snapshot
from disttest.runtime.rank.facet import is_same
from disttest.runtime.rank.loaded_facets import ENVIRONMENT

# Libraries by name: a developer of torch has it outside the library folders.
_PACKAGES = frozenset({"torch", "torchgen", "functorch", "disttest"})
_BY_PYTHON = frozenset({"__warningregistry__", "__annotations__", "__builtins__"})


class ModuleWatch:
    """Snapshot of the user's modules and some classes: their names, and the content of containers."""

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self._owners: list[Any] = [*_own_modules(), *classes]
        self._names = [_names(owner) for owner in self._owners]
        self._contents = [
            (name, value, value.copy())
            for owner, names in zip(self._owners, self._names, strict=True)
            for name, value in ((f"{_label(owner)}.{name}", value) for name, value in names.items())
            # Exact types: a subclass may do anything when it is copied.
            if type(value) in (dict, list, set)
        ]

    def changed(self) -> str:
        """Name the first difference from the snapshot; empty if there is none."""
        for owner, then in zip(self._owners, self._names, strict=True):
            if not _same(now := _names(owner), then):
                return f"{_label(owner)}.{_first_difference(now, then)}"
        return next((name for name, value, then in self._contents if not _same(value, then)), "")


class Numbers:
    """Counters that classes in torch's test modules keep; a new rank starts with fresh numbers."""

    def __init__(self, classes: Iterable[type]) -> None:
        """Record the counters.

        Args:
            classes: a test class and its bases; those from torch select the modules.
        """
        modules = {each.__module__ for each in classes if each.__module__.startswith("torch.")}
        owners = [
            each for name in modules for each in vars(sys.modules[name]).values() if isinstance(each, type)
        ]
        self._then = [
            (owner, name, value)
            for owner in owners
            if owner.__module__ in modules
            for name, value in vars(owner).items()
            if type(value) is int
        ]

    def put_back(self) -> None:
        """Restore the counters that have changed."""
        for owner, name, value in self._then:
            if vars(owner).get(name) != value:
                setattr(owner, name, value)


def _names(owner: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if name not in _BY_PYTHON}


def _label(owner: Any) -> str:
    return str(getattr(owner, "__qualname__", owner.__name__))


def _first_difference(now: Mapping[str, Any], then: Mapping[str, Any]) -> str:
    missing = object()
    return next(name for name in [*now, *then] if not _same(now.get(name, missing), then.get(name, missing)))


def _same(now: Any, then: Any) -> bool:
    try:
        return now is then or bool(now == then)
    except Exception:  # noqa: BLE001  # a value of a test, with any idea of equality
        return False


def _own_modules() -> Iterator[Any]:
    # A copy, because an attribute of a lazy module may import others.
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and name.partition(".")[0] not in _PACKAGES and not _is_library(file):
            yield module


def _is_library(file: str) -> bool:
    return file.startswith(_library_folders())


@lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(f"{Path(path)}/" for path in {*paths, *site.getsitepackages(), site.getusersitepackages()})


# A fork has only the thread that forked, no children, and no interval timers (fork(2)).
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
        # Living ranks lack the module, and would import it in a state that new ranks do not have.
        new = sys.modules.keys() - self._loaded
        return f"import of {min(new)}" if new else self._modules.changed()

    def put_back(self) -> str:
        """Name a change to shared modules that a test made in this fork, and restore numbers."""
        self._numbers.put_back()
        return self._modules.changed()

    def take_variables(self) -> Variables:
        """Return the changes of environment variables since the last call, which living ranks can be notified of."""
        then, now = self._facts[ENVIRONMENT], self._seen[ENVIRONMENT]
        # Living ranks apply the changes, so from now on they differ from a new rank by none of these.
        self._facts = {**self._facts, ENVIRONMENT: now}
        names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        return tuple((name, now.get(name)) for name in names)


def _facts() -> state_snapshot.Facts:
    return {
        kind: values for kind, values in state_snapshot.read_state().items() if kind not in _NOT_INHERITED
    }
