"""From a collected method to what it needs of a host: which kind its class is, and how many ranks it starts."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from _pytest.unittest import TestCaseFunction

from disttest.errors import UsageError
from disttest.model import FlakyRule, Frozen, Isolation, VerdictRule, WorldKind, WorldShape
from disttest.options.run import RunOptions
from disttest.planning.backends import CPU, backend_named
from disttest.plugins.launching_classes.option_rows import hosts_all
from disttest.plugins.launching_classes.recognise_launching import launches_ranks, limit_s, most_ranks
from disttest.plugins.launching_classes.reuse import why_new_ranks
from disttest.plugins.launching_classes.torch_module import rank_count, torch_module
from disttest.runtime.controller.expand import closest_mark, shape_of
from disttest.runtime.controller.target_host import TargetHost
from disttest.runtime.controller.wanted_worlds import OwnWorld, marked_device, new_ranks_for_plugins


class Hosted(Frozen):
    """The class of a test that starts its ranks, as far as it is known before any process starts."""

    kind: WorldKind
    size: int
    """1 where the class will only say later."""
    limit_s: float = 0.0
    """The limit of the class; 0: it has none."""
    why_new_ranks: str | None = None
    """Why ranks that it starts are new for each test, empty if they need not be; None for classes that are not asked."""
    refusal: str = ""
    """Why none of its ranks would run here; empty when some would. Torch's harness passes such a test."""


_STARTING = {
    "MultiProcContinuousTest": "_ensure_processes_spawned",
    "MultiProcessTestCase": "join_or_run",
}
"""Bases -> the method by which their ranks come into the test; a class that has its own only simulates them."""
_NO_ACCELERATOR = (
    "needs an accelerator: its class runs one rank on each, and this machine has none (torch's harness starts no rank and "
    "passes the test)"
)


def world_of(item: pytest.Item, options: RunOptions, host: TargetHost) -> OwnWorld | None:
    """The ranks that the class of a test starts; None for other tests.

    Args:
        item: the test.
        options: of the run.
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
            f"{item.nodeid}: a world_size mark on a test whose class starts its ranks by itself; "
            "set the world_size of the class instead"
        )
    # Such a class says by itself which backends it uses: unless it is marked, it may need what the run has.
    device = marked_device(item) or host.device
    suitable = (
        name for name in options.backend if device != CPU or not backend_named(name).needs_accelerator
    )
    backend = next(suitable, host.default_backend(device))
    return WorldShape(size=found.size, backend=backend, device=device)


def _new_ranks_because(
    item: pytest.Item, found: Hosted, options: RunOptions, host: TargetHost, *, by_plugin: str
) -> str | None:
    """Why ranks that its class starts are new for the test, empty if they need not be; None where that is no question."""
    if found.why_new_ranks is None or options.isolation is not Isolation.WARM:
        return None
    reasons = {
        "marked fresh_world": closest_mark(item, "fresh_world") is not None,
        "each repetition is an attempt of its own": options.repeat > 1,
        "--flaky=fail": options.flaky is FlakyRule.FAIL,
        "ranks are debugged": options.is_debugged,
        by_plugin: bool(by_plugin),
        "ranks on GPUs": (marked_device(item) or host.device) != CPU,
    }
    return next((why for why, holds in reasons.items() if holds), found.why_new_ranks)


def inspect_class(item: Any) -> Hosted | None:
    """What the class of a test says of its ranks; None for a test that does not start ranks by itself."""
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
    """A fixture that is set up anew for the test, and may do as much as a ``setUp``; not those that pytest makes of methods."""
    chains = item._fixtureinfo.name2fixturedefs.items()  # noqa: SLF001
    return next((name for name, chain in chains if chain[-1].scope == "function" and name[0] != "_"), "")


def _launched(item: Any) -> Hosted | None:
    cls = getattr(item, "cls", None)
    asked = hosts_all(item.config) or item.get_closest_marker("hosted")
    if cls is None or not asked or not launches_ranks(cls):
        return None
    return Hosted(kind=WorldKind.MAIN, size=most_ranks(item), limit_s=limit_s(cls))


def is_asked(node: Any) -> bool:
    """Whether the user wants torch's own classes of this test on supervised ranks: by an option or by a mark."""
    marks = ("hosted", "world_size")  # a world for such a class is an error, which is found nowhere else
    return hosts_all(node.config) or any(map(node.get_closest_marker, marks))


def kind_of(cls: type, *, torchs: bool) -> WorldKind | None:
    """How the class meets its ranks; None for any other class. Reads torch's bases, and imports nothing.

    Args:
        cls: any test class.
        torchs: whether torch's own classes count; ours always do, since they have no other way to run.
    """
    declared = getattr(cls, "__disttest_kind__", None)
    if declared is not None:
        return WorldKind(declared)
    module = torch_module()
    if module is None or not torchs:
        return None
    for base, starts_ranks in _STARTING.items():
        if issubclass(cls, _bases(module, base)):
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
    """The instance's ``world_size``; None where it cannot be told before ``setUp``."""
    try:
        return cls(name).world_size
    except Exception:  # noqa: BLE001  # a class may be of any mind; its own run will say what is wrong
        method = getattr(cls, name, None)
        return next((getattr(method, mark) for mark in _SIZES_OF_METHODS if hasattr(method, mark)), None)


_SIZES_OF_METHODS = ("_required_world_size", "_min_gpus_required")
"""What torch's decorators note at a method of the ranks that it needs; the class reads it when the test runs."""


def _size(value: Any) -> int:
    try:
        return rank_count(value)
    except UsageError:
        return 1


def _limit_s(name: str) -> float:
    module = torch_module()
    return float(module.get_timeout(name)) if module is not None else 0.0


def _refusal(cls: type, value: Any, kind: WorldKind) -> str:
    """A number of ranks that is worked out, and comes to 0, has been taken from devices; one that is written down is a slip."""
    counted = isinstance(inspect.getattr_static(cls, "world_size", None), property)
    return (
        _NO_ACCELERATOR
        if counted and kind is WorldKind.MAIN and not isinstance(value, bool) and value == 0
        else ""
    )
