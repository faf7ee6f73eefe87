"""A facet: one kind of process-wide state."""

from __future__ import annotations

import contextvars
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Values = Mapping[Any, Any]
"""Values of one facet, by name."""
MISSING = object()
"""The value of a missing name."""
_LONGEST = 80


class Facet(NamedTuple):
    """One kind of process-wide state. Reading must be fast: it happens for every test."""

    kind: str
    """Name used in notes: ``environment``, ``process group``. No two facets of a process have the same name."""
    read: Callable[[], Values]
    restore: Callable[[Any, Any], bool]
    """Restore the value of one name (``MISSING``: it did not exist); return False if that is impossible."""
    describe: Callable[[str, Any, Any], str] | None = None
    """Describes a change from label, current value and old value; by default both values with ``repr``.

    Empty for a change that is no fault of the test.
    """
    made_for_tests: bool = False
    """Whether disttest creates this state for tests."""
    by_world: bool = False
    """Whether the world removes new names when all ranks are done, since a slower rank may still wait for them."""
    kept_since_first: bool = False
    """Whether readings compare with the first reading of the process or of the process it was forked from."""
    forget: Callable[[], None] | None = None
    """Makes the next reading consider changes by other ranks; readings otherwise consider this rank only."""


class FacetSource(NamedTuple):
    """The facets of one library."""

    library: str
    """Module whose import makes the state readable: ``torch``, or ``sys`` for state that every process has."""
    load: Callable[[], Sequence[Facet]]
    """Return the facets. Called once in a process, after the library was imported."""


class Setting(NamedTuple):
    """One value with its getter and setter; most facets are tables of these."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], object] | None = None
    """None if the value cannot be restored, so that the process must not run another test."""


def settings(kind: str, *rows: Setting, made_for_tests: bool = False) -> Facet:
    """Build a facet of settings that always exist.

    Args:
        kind: name of the facet, which no other facet has.
        rows: the settings; all those of a library fit into one facet.
        made_for_tests: see :class:`Facet`.
    """
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
    """Return getter and setter of an attribute, for a :class:`Setting`."""
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def is_same(left: Any, right: Any) -> bool:
    """Whether two values are identical, or equal and of one type; values that cannot be compared differ."""
    if left is right:
        return True
    try:
        # `True == 1` and `0 == 0.0`, but a change of the type is a change of the state.
        return type(left) is type(right) and bool(left == right)
    except Exception:  # noqa: BLE001 - a value that a test has left: anything may happen
        return False


def describe_change(facet: Facet, name: Any, now: Any, then: Any) -> str:
    """Describe the change of one value."""
    what = f"{facet.kind} {_as_text(name)}".strip()
    try:
        return (facet.describe or change)(what, now, then)
    except Exception:  # noqa: BLE001 - a value that a test has left, or that could not be read
        return change(what, now, then)


def presence(what: str, now: Any, _then: Any) -> str:
    """Describe a name without a value: ``thread worker (still there)``."""
    return f"{what} ({'gone' if now is MISSING else 'still there'})"


def change(what: str, now: Any, then: Any) -> str:
    """Describe a change of values: ``environment FOO: unset became '1'``."""
    before, after = ("unset" if v is MISSING else repr(_as_text(v))[:_LONGEST] for v in (then, now))
    return f"{what}: {before} became {after}"


def _as_text(value: Any) -> Any:
    """Convert a value to readable text: environment variables are bytes, signals have names."""
    if isinstance(value, bytes):
        return os.fsdecode(value)
    if isinstance(value, tuple) and all(isinstance(part, str) for part in value):
        return ".".join(value)
    named = isinstance(value, (signal.Signals, contextvars.ContextVar))
    return value.name if named else value
