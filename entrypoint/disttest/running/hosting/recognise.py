"""From a collected unittest method to what it needs of a host: which kind it is, and how many ranks it starts."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.unittest import TestCaseFunction

from disttest.errors import UsageError
from disttest.model import Frozen, Kind
from disttest.running.hosting.torch_bases import rank_count, torch_module


class Hosted(Frozen):
    """What is known of a hosted test before any process starts."""

    kind: Kind
    size: int
    """1 where the class will only say later."""
    limit_s: float = 0.0
    """The class's own idea of how long it may take; 0: it has none."""
    refusal: str = ""
    """Why it can not run here; empty when it can."""


_HOSTED = pytest.StashKey[Hosted | None]()
_NO_ACCELERATOR = (
    "needs an accelerator: its class runs one rank on each (torch's DynamoDistributedMultiProcTestCase), "
    "and this machine has none"
)


def hosted(item: Any) -> Hosted | None:
    """What the item needs of a host; None for a test that does not start ranks by itself."""
    if _HOSTED not in item.stash:
        item.stash[_HOSTED] = _inspect(item)
    found: Hosted | None = item.stash[_HOSTED]
    return found


def _inspect(item: Any) -> Hosted | None:
    if not isinstance(item, TestCaseFunction):
        return None
    cls: Any = getattr(item.parent, "obj", None)
    kind = kind_of(cls) if isinstance(cls, type) else None
    if kind is None:
        return None
    value = _world_size(cls, item.originalname)
    return Hosted(
        kind=kind, size=_size(value), limit_s=_limit_s(item.originalname), refusal=_refusal(cls, value)
    )


def kind_of(cls: type) -> Kind | None:
    """How the class meets its ranks; None for any other class. Reads torch's bases, and imports nothing."""
    declared = getattr(cls, "__disttest_kind__", None)
    if declared is not None:
        return Kind(declared)
    module = torch_module()
    if module is None:
        return None
    if issubclass(cls, _bases(module, "MultiProcContinuousTest")):
        return Kind.MAIN
    if issubclass(cls, _bases(module, "MultiProcessTestCase")):
        simulated = cls.join_or_run is not module.MultiProcessTestCase.join_or_run  # type: ignore[attr-defined]
        return Kind.THREADS if simulated else Kind.MAIN
    return Kind.THREADS if issubclass(cls, _bases(module, "MultiThreadedTestCase")) else None


def _bases(module: Any, *names: str) -> tuple[type, ...]:
    return tuple(getattr(module, name) for name in names if hasattr(module, name))


def _world_size(cls: Any, name: str) -> Any:
    """The instance's ``world_size``; None where it can not be told before ``setUp``."""
    try:
        return cls(name).world_size
    except Exception:  # noqa: BLE001  # a class may be of any mind; its own run will say what is wrong
        return None


def _size(value: Any) -> int:
    try:
        return rank_count(value)
    except UsageError:
        return 1


def _limit_s(name: str) -> float:
    module = torch_module()
    return float(module.get_timeout(name)) if module is not None else 0.0


def _refusal(cls: type, value: Any) -> str:
    base = getattr(torch_module(), "DynamoDistributedMultiProcTestCase", None)
    if base is None or not issubclass(cls, base) or value != 0:
        return ""
    return _NO_ACCELERATOR if getattr(cls, "world_size", None) is base.world_size else ""
