"""Chaos in the controller: which tests take part, and one of each for each of its faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from disttest.errors import UsageError
from disttest.extras.chaos.case import ChaosCase, Contract
from disttest.extras.chaos.contract import contract_of
from disttest.extras.chaos.fault_plan import ChaosPlan
from disttest.runtime.controller.expand import closest_mark, rename, shape_of, twin_of

_CASE = pytest.StashKey[ChaosCase]()


def case_of_item(item: pytest.Item) -> ChaosCase | None:
    """What chaos does to an item; None if it has no part in the run."""
    return item.stash.get(_CASE, None)


def harm_each(items: list[pytest.Item], config: pytest.Config, plan_file: Path) -> None:
    """Keep the tests that have a world, to be counted; or have one of each for each fault of the plan.

    Raises:
        UsageError: a chaos mark makes no sense.
    """
    plan = msgspec.json.decode(plan_file.read_bytes(), type=ChaosPlan)
    kept = [each for item in items for each in _of(item, plan)]
    config.hook.pytest_deselected(items=[item for item in items if shape_of(item) is None])
    items[:] = kept


def _of(item: pytest.Item, plan: ChaosPlan) -> Iterator[pytest.Item]:
    if shape_of(item) is None:
        return
    if plan.cases is None:
        yield _with_case(item, ChaosCase(contract=_contract(item)))
        return
    for case in plan.cases.get(item.nodeid, ()):
        twin = _with_case(twin_of(item), case)
        rename(twin, _name(item.nodeid, str(case.fault)), collected_as=item.nodeid)
        yield twin


def _with_case(item: pytest.Item, case: ChaosCase) -> pytest.Item:
    """The item with its part in the run: processes of its own, and the time that its fault may take."""
    item.stash[_CASE] = case
    item.add_marker(pytest.mark.fresh_world, append=False)
    if case.fault is not None:
        item.add_marker(pytest.mark.timeout(case.timeout_s), append=False)
    return item


def _contract(item: pytest.Item) -> Contract:
    mark = closest_mark(item, "chaos")
    try:
        return contract_of(*((mark.args, mark.kwargs) if mark else ((), {})))
    except UsageError as error:
        raise UsageError(f"{item.nodeid}: {error}") from None


def _name(nodeid: str, fault: str) -> str:
    """``test_x.py::test_step[4xgloo-kill:1:5]``."""
    return f"{nodeid.removesuffix(']')}-{fault}]"
