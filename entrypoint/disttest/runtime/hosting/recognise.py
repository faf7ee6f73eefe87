"""From a collected method to what it needs of a host: which kind its class is, and how many ranks it starts."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from _pytest.unittest import TestCaseFunction

from disttest.errors import UsageError
from disttest.model import Frozen, WorldKind
from disttest.runtime.hosting.recognise_launching import launches_ranks, limit_s, most_ranks
from disttest.runtime.hosting.reuse import why_new_ranks
from disttest.runtime.hosting.torch_module import rank_count, torch_module


class Hosted(Frozen):
    """What is known of a hosted test before any process starts."""

    kind: WorldKind
    size: int
    """1 where the class will only say later."""
    limit_s: float = 0.0
    """The class's own idea of how long it may take; 0: it has none."""
    why_new_ranks: str | None = None
    """Why ranks that it starts are new for each test, empty if they need not be; None for classes that are not asked."""
    refusal: str = ""
    """Why no rank of it would run here; empty when some would. Torch's harness passes such a test."""


_HOSTED = pytest.StashKey[Hosted | None]()
TORCHS_RULES = pytest.StashKey[bool]()
"""Of a pytest configuration: whether a test passes that torch's harness passes, though no rank of it runs."""
HOSTING = pytest.StashKey[bool]()
"""Of a pytest configuration: whether classes of other harnesses are hosted without a mark that says so."""
_STARTING = {
    "MultiProcContinuousTest": "_ensure_processes_spawned",
    "MultiProcessTestCase": "join_or_run",
}
"""Bases -> the method by which their ranks come into the test; a class that has its own only simulates them."""
_NO_ACCELERATOR = (
    "needs an accelerator: its class runs one rank on each, and this machine has none (torch's harness starts no rank and "
    "passes the test)"
)


def hosted(item: Any) -> Hosted | None:
    """What the item needs of a host; None for a test that does not start ranks by itself."""
    if _HOSTED not in item.stash:
        item.stash[_HOSTED] = _inspect(item)
    found: Hosted | None = item.stash[_HOSTED]
    return found


def _inspect(item: Any) -> Hosted | None:
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
    asked = item.config.stash.get(HOSTING, False) or item.get_closest_marker("hosted")
    if cls is None or not asked or not launches_ranks(cls):
        return None
    return Hosted(kind=WorldKind.MAIN, size=most_ranks(item), limit_s=limit_s(cls))


def is_asked(node: Any) -> bool:
    """Whether somebody wants torch's own classes of this module, class or test to be hosted: by an option or by a mark."""
    marks = ("hosted", "world_size")  # a world for such a class is an error, which only a host can tell
    return node.config.stash.get(HOSTING, False) or any(map(node.get_closest_marker, marks))


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


def ranks_may_differ(item: pytest.Item) -> bool:
    """Whether a test says that its ranks may come to different things."""
    return item.get_closest_marker("ranks_may_differ") is not None
