"""A facet: one kind of process-wide state."""

from __future__ import annotations

import contextvars
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Values = Mapping[Any, Any]
"""Of one facet: name -> value."""
MISSING = object()
"""The value of what is not there."""
_LONGEST = 80


class Facet(NamedTuple):
    """One kind of process-wide state. Read for every test, so reading is to be quick."""

    kind: str
    """As it stands in the note: ``environment``, ``process group``."""
    read: Callable[[], Values]
    restore: Callable[[Any, Any], bool]
    """Put the value of one name back (``MISSING``: it was not there); False where that cannot be done."""
    describe: Callable[[str, Any, Any], str] | None = None
    """What it is, value now, value then -> the words of the note; by default both values as Python shows them."""
    made_for_tests: bool = False
    """disttest itself makes it after the process has started, so that the state at the start is none to return to."""
    by_world: bool = False
    """What is new is removed by the world, once all ranks are done: one that is behind may wait for it."""
    kept_since_first: bool = False
    """Its first reading notes what stands there, which later readings compare with; forks of a process go on from its."""
    forget: Callable[[], None] | None = None
    """Have the next reading heed what other ranks may have done, where readings otherwise heed this one only."""


class Setting(NamedTuple):
    """One value with its own way to read and to set it: most facets are rows of these."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], object] | None = None
    """None: it cannot be put back, and the process must not run another test."""


def settings(kind: str, *rows: Setting, made_for_tests: bool = False) -> Facet:
    """A facet of settings that are always there."""
    puts = {row.name: row.put for row in rows}
    gets = [(row.name, row.get) for row in rows]

    def read() -> Values:
        return {name: get() for name, get in gets}

    def restore(name: str, then: Any) -> bool:
        put = puts[name]
        if put is None:
            return False
        put(then)
        return True

    return Facet(kind, read, restore, made_for_tests=made_for_tests)


def attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """How to get and to put an attribute, for a :class:`Setting`."""
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def is_same(left: Any, right: Any) -> bool:
    """Whether two values are one, or equal and of one type; what cannot be compared is not the same."""
    if left is right:
        return True
    try:
        return type(left) is type(right) and bool(left == right)
    except Exception:  # noqa: BLE001 - a value that a test has left: anything may happen
        return False


def describe_change(facet: Facet, name: Any, now: Any, then: Any) -> str:
    """The words of the note on one value."""
    what = f"{facet.kind} {_as_text(name)}".strip()
    return (facet.describe or change)(what, now, then)


def presence(what: str, now: Any, _then: Any) -> str:
    """For what is there or not, and has no value: ``thread worker (still there)``."""
    return f"{what} ({'gone' if now is MISSING else 'still there'})"


def change(what: str, now: Any, then: Any) -> str:
    """For what has values: ``environment FOO: unset became '1'``."""
    before, after = ("unset" if v is MISSING else repr(_as_text(v))[:_LONGEST] for v in (then, now))
    return f"{what}: {before} became {after}"


def _as_text(value: Any) -> Any:
    """A value as people write it: the environment's are bytes, signals have names."""
    if isinstance(value, bytes):
        return os.fsdecode(value)
    if isinstance(value, tuple) and all(isinstance(part, str) for part in value):
        return ".".join(value)
    named = isinstance(value, (signal.Signals, contextvars.ContextVar))
    return value.name if named else value
