"""Recognition of test classes that start ranks: their kind, and the number of ranks."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest.unittest import TestCaseFunction

from disttest.errors import UsageError
from disttest.model import FlakyRule, Frozen, Isolation, VerdictRule, WorldKind, WorldShape
from disttest.options.run import RunOptions
from disttest.options.values import check_world_size
from disttest.planning.backends import CPU, backend_named
from disttest.plugins.launching_classes.hooks import hosts_all
from disttest.plugins.launching_classes.reuse import why_new_ranks
from disttest.runtime.controller.expand import closest_mark, shape_of
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.controller.wanted_worlds import OwnWorld, marked_device, new_ranks_for_plugins

_NAME = "torch.testing._internal.common_distributed"


def torch_module() -> types.ModuleType | None:
    """Return torch's module of test bases if it is imported. It is never imported here."""
    # A class with such a base has imported it, and other runs need not pay for the import.
    return sys.modules.get(_NAME)


def torch_skips() -> dict[int, str]:
    """Return the skip codes of the installed torch."""
    module = torch_module()
    return {skip.exit_code: skip.message for skip in module.TEST_SKIPS.values()} if module else {}


def rank_count(value: Any) -> int:
    """Convert a ``world_size`` to a number of ranks. As in torch, it is an int or its text.

    Raises:
        UsageError: it is neither, or not between 1 and the limit.
    """
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    return check_world_size(value)


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


class Hosted(Frozen):
    """Properties of a test class that starts its ranks, as far as they are known before any process starts."""

    kind: WorldKind
    size: int
    """Number of ranks; 1 if the class decides later."""
    limit_s: float = 0.0
    """Time limit of the class; 0 if it has none."""
    why_new_ranks: str | None = None
    """Why its ranks must be new for each test; empty if they may be reused, None if the class is never reused."""
    refusal: str = ""
    """Why none of its ranks would run here; empty if some would. torch's harness passes such a test."""


_STARTING = {
    "MultiProcContinuousTest": "_ensure_processes_spawned",
    "MultiProcessTestCase": "join_or_run",
}
"""Bases, mapped to the method that starts their ranks. A class that overrides it only simulates ranks."""
_NO_ACCELERATOR = (
    "needs an accelerator: its class runs one rank on each, and this machine has none (torch's harness starts no rank and "
    "passes the test)"
)


def world_of(item: pytest.Item, options: RunOptions, host: TargetHost) -> OwnWorld | None:
    """Return the world of the ranks that the class of a test starts; None for other tests.

    Args:
        item: the test.
        options: options of the run.
        host: the machine that the tests are collected for.

    Raises:
        UsageError: the test has a world_size mark, too.
    """
    found = inspect_class(item)
    if found is None:
        return None
    shape = _shape(item, found, options, host)
    by_plugin = new_ranks_for_plugins(shape, found.kind, options)
    return OwnWorld(
        shape=shape,
        kind=found.kind,
        limit_s=found.limit_s,
        new_ranks_because=_new_ranks_because(item, found, options, host, by_plugin=by_plugin),
        refusal="" if options.verdict is VerdictRule.TORCH else found.refusal,
    )


def _shape(item: pytest.Item, found: Hosted, options: RunOptions, host: TargetHost) -> WorldShape:
    if shape_of(item) is not None:
        raise UsageError(
            f"{item.nodeid} has a world_size mark, but its class starts the ranks: "
            "remove the mark and set world_size in the class"
        )
    # Such a class chooses its own backends. Unless it is marked, it may need all devices of the run.
    device = marked_device(item) or host.device
    suitable = (
        name for name in options.backend if device != CPU or not backend_named(name).needs_accelerator
    )
    backend = next(suitable, host.default_backend(device))
    return WorldShape(size=found.size, backend=backend, device=device)


def _new_ranks_because(
    item: pytest.Item, found: Hosted, options: RunOptions, host: TargetHost, *, by_plugin: str
) -> str | None:
    """Return why its ranks must be new for the test; empty if they may be reused, None if that is no question."""
    if found.why_new_ranks is None or options.isolation is not Isolation.WARM:
        return None
    reasons = {
        "marked fresh_world": closest_mark(item, "fresh_world") is not None,
        # Repetitions look for rare failures, which reuse may hide or cause.
        "each repetition is a separate attempt": options.repeat > 1,
        # The second run in new ranks would hide that a test is red now and then.
        "--flaky=fail": options.flaky is FlakyRule.FAIL,
        "ranks are debugged": options.is_debugged,
        by_plugin: bool(by_plugin),
        "ranks on GPUs": (marked_device(item) or host.device) != CPU,
    }
    return next((why for why, holds in reasons.items() if holds), found.why_new_ranks)


def inspect_class(item: Any) -> Hosted | None:
    """Return the properties of a test's class; None for a test that does not start ranks."""
    if not isinstance(item, TestCaseFunction):
        return _launched(item)
    cls: Any = getattr(item.parent, "obj", None)
    kind = kind_of(cls, torchs=is_asked(item)) if isinstance(cls, type) else None
    if kind is None:
        return None
    value = _world_size(cls, item.originalname)
    return Hosted(
        kind=kind,
        size=_size(value),
        limit_s=_limit_s(item.originalname),
        why_new_ranks=_why_new_ranks(item, cls, kind),
        refusal=_refusal(cls, value, kind),
    )


def _why_new_ranks(item: Any, cls: Any, kind: WorldKind) -> str | None:
    base = getattr(torch_module(), "MultiProcessTestCase", None)
    if base is None or kind is not WorldKind.MAIN or not issubclass(cls, base):
        return None
    fixture = _fixture_of_test(item)
    return f"it uses the fixture {fixture}" if fixture else why_new_ranks(cls, base)


def _fixture_of_test(item: Any) -> str:
    """Return a fixture that runs for each test like a ``setUp``, except those that pytest makes of methods."""
    # pytest has no public view of the fixtures of an item (pytest 8.4 to 9.2):
    # https://github.com/pytest-dev/pytest/blob/main/src/_pytest/fixtures.py
    chains = item._fixtureinfo.name2fixturedefs.items()  # noqa: SLF001
    return next((name for name, chain in chains if chain[-1].scope == "function" and name[0] != "_"), "")


def _launched(item: Any) -> Hosted | None:
    cls = getattr(item, "cls", None)
    asked = hosts_all(item.config) or item.get_closest_marker("hosted")
    if cls is None or not asked or not launches_ranks(cls):
        return None
    return Hosted(kind=WorldKind.MAIN, size=most_ranks(item), limit_s=limit_s(cls))


def is_asked(node: Any) -> bool:
    """Return whether the user enabled supervised ranks for torch's classes of this test, by an option or a mark."""
    # a world_size mark on such a class is an error that is only found this way
    marks = ("hosted", "world_size")
    return hosts_all(node.config) or any(map(node.get_closest_marker, marks))


def kind_of(cls: type, *, torchs: bool) -> WorldKind | None:
    """Return how the class gets its ranks; None for any other class. It reads torch's bases and imports nothing.

    Args:
        cls: any test class.
        torchs: whether torch's own classes count. disttest's always do, because they have no other way to run.
    """
    declared = getattr(cls, "__disttest_kind__", None)
    if declared is not None:
        return WorldKind(declared)
    module = torch_module()
    if module is None or not torchs:
        return None
    for base, starts_ranks in _STARTING.items():
        if issubclass(cls, _bases(module, base)):
            # Statically: no property or metaclass of a test class runs while it is only inspected.
            theirs = inspect.getattr_static(getattr(module, base), starts_ranks, None)
            return (
                WorldKind.MAIN
                if inspect.getattr_static(cls, starts_ranks, None) is theirs
                else WorldKind.THREADS
            )
    return WorldKind.THREADS if issubclass(cls, _bases(module, "MultiThreadedTestCase")) else None


def _bases(module: Any, *names: str) -> tuple[type, ...]:
    return tuple(getattr(module, name) for name in names if hasattr(module, name))


def _world_size(cls: Any, name: str) -> Any:
    """Return the instance's ``world_size``; None if it is unknown before ``setUp``."""
    try:
        # Many classes compute it from the number of devices, in a property or in `__init__`.
        return cls(name).world_size
    except Exception:  # noqa: BLE001  # a class may raise anything; its own run reports the reason
        method = getattr(cls, name, None)
        return next((getattr(method, mark) for mark in _SIZES_OF_METHODS if hasattr(method, mark)), None)


_SIZES_OF_METHODS = ("_required_world_size", "_min_gpus_required")
"""Attributes in which torch's decorators store the ranks that a method needs."""


def _size(value: Any) -> int:
    try:
        return rank_count(value)
    except UsageError:
        return 1


def _limit_s(name: str) -> float:
    module = torch_module()
    return float(module.get_timeout(name)) if module is not None else 0.0


def _refusal(cls: type, value: Any, kind: WorldKind) -> str:
    """Return why no rank can run. A computed size of 0 comes from missing devices; a literal 0 is a mistake."""
    counted = isinstance(inspect.getattr_static(cls, "world_size", None), property)
    return (
        _NO_ACCELERATOR
        if counted and kind is WorldKind.MAIN and not isinstance(value, bool) and value == 0
        else ""
    )
