"""Recognition of test classes that launch their ranks (``is_dist_test``, as DeepSpeed's), and their properties.

Nothing here starts a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_WAYS = ("_launch_daemonic_procs", "_launch_non_daemonic_procs")
"""Methods of some classes: their ``_launch_procs`` looks for devices first, and then calls one of these."""


def launches_ranks(cls: type) -> bool:
    """Return whether the class is of this kind and has a single way to launch ranks. Overridden ways are left alone."""
    return (
        bool(getattr(cls, "is_dist_test", False))
        and callable(getattr(cls, "_dist_run", None))
        and all(len(definitions(cls, name)) == 1 for name in launchers(cls))
    )


def most_ranks(item: Any) -> int:
    """Return the largest number of simultaneous ranks of such a test: its own, or those of a fixture that it uses."""
    mark = item.get_closest_marker("world_size")
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    asked = (
        mark.args[0]
        if mark and mark.args
        else parameters.get("world_size", getattr(item.cls, "world_size", 1))
    )
    # pytest has no public view of the fixtures of an item (pytest 8.4 to 9.2).
    chains = item._fixtureinfo.name2fixturedefs.values()  # noqa: SLF001
    fixtures = (
        each.func for chain in chains for each in chain if getattr(each.func, "is_dist_fixture", False)
    )
    sizes = [asked, *(getattr(fixture, "world_size", 1) for fixture in fixtures)]
    return max((size for each in sizes for size in _whole_numbers(each)), default=1)


def limit_s(cls: type) -> float:
    """Return the time limit that the class gives its ranks; 0 if it has none."""
    limit = getattr(cls, "exec_timeout", 0)
    return float(limit) if isinstance(limit, int | float) else 0.0


def launchers(cls: type) -> tuple[str, ...]:
    """Return the methods in which it launches them."""
    return tuple(name for name in _WAYS if hasattr(cls, name)) or ("_launch_procs",)


def definitions(cls: type, name: str) -> list[type]:
    """Return the classes that define a method, in method resolution order."""
    return [base for base in cls.__mro__ if name in vars(base)]


def _whole_numbers(value: object) -> Iterator[int]:
    for each in value if isinstance(value, list | tuple) else [value]:
        if isinstance(each, int) and each > 0:
            yield each
