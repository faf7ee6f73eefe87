"""Under chaos: which tests take part, and one of each for each of its faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from disttest.chaos.contract import contract_of
from disttest.chaos.fault_plan import ChaosPlan
from disttest.errors import UsageError
from disttest.model import ChaosCase, Contract
from disttest.runtime.controller.expand import closest_mark, rename, shape_of, twin_of

_CASE = pytest.StashKey[ChaosCase]()


def case_of(item: pytest.Item) -> ChaosCase | None:
    """What chaos does to an item; None where it has no part in the run."""
    return item.stash.get(_CASE, None)


def harm_each(items: list[pytest.Item], config: pytest.Config) -> None:
    """Keep the tests that have a world, to be counted; or have one of each for each fault of the plan.

    Raises:
        UsageError: a chaos mark makes no sense.
    """
    path = config.getoption("disttest_chaos")
    if not path:
        return
    plan = msgspec.json.decode(Path(path).read_bytes(), type=ChaosPlan)
    kept = [each for item in items for each in _of(item, plan)]
    config.hook.pytest_deselected(items=[item for item in items if shape_of(item) is None])
    items[:] = kept


def _of(item: pytest.Item, plan: ChaosPlan) -> Iterator[pytest.Item]:
    if shape_of(item) is None:
        return
    if plan.cases is None:
        item.stash[_CASE] = ChaosCase(contract=_contract(item))
        yield item
        return
    for case in plan.cases.get(item.nodeid, ()):
        twin = twin_of(item)
        twin.stash[_CASE] = case
        rename(twin, _name(item.nodeid, str(case.fault)), collected_as=item.nodeid)
        yield twin


def _contract(item: pytest.Item) -> Contract:
    mark = closest_mark(item, "chaos")
    try:
        return contract_of(*((mark.args, mark.kwargs) if mark else ((), {})))
    except UsageError as error:
        raise UsageError(f"{item.nodeid}: {error}") from None


def _name(nodeid: str, fault: str) -> str:
    """``test_x.py::test_step[4xgloo-kill:1:5]``."""
    return f"{nodeid.removesuffix(']')}-{fault}]"
