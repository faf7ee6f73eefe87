"""Chaos in the controller: select the tests that take part, and make one test of each fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from disttest.errors import UsageError
from disttest.extras.chaos.case import ChaosCase, Contract, Survival
from disttest.extras.chaos.fault_plan import ChaosPlan
from disttest.runtime.controller.expand import closest_mark, rename, shape_of, twin_of

_LOSSES = ("kill", "stop", "raise_")
_KNOWN = (*_LOSSES, "delay", "recover", "within_s")


def contract_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Contract:
    """Return the contract of a mark: ``chaos(kill="recovers", within_s=2)``, or ``chaos(recover=True)`` for all faults.

    Raises:
        UsageError: an argument of the mark is unknown or invalid.
    """
    if args or (unknown := sorted(set(kwargs) - set(_KNOWN))):
        raise UsageError(f"chaos mark takes {', '.join(_KNOWN)}, not {args[0] if args else unknown[0]!r}")
    given = dict.fromkeys(_LOSSES, Survival.RECOVERS) if kwargs.get("recover") else {}
    given |= {key: value for key, value in kwargs.items() if key != "recover"}
    try:
        contract = msgspec.convert(given, Contract)
    except msgspec.ValidationError:
        raise UsageError(
            f"chaos mark: kill, stop, raise_ and delay must be one of {', '.join(Survival)}, and within_s a number"
        ) from None
    if contract.within_s <= 0:
        raise UsageError(
            f"chaos mark: within_s is {contract.within_s:g}; give a number of seconds greater than 0"
        )
    return contract


_CASE = pytest.StashKey[ChaosCase]()


def case_of_item(item: pytest.Item) -> ChaosCase | None:
    """Return the chaos data of an item; None if it takes no part in the run."""
    return item.stash.get(_CASE, None)


def add_fault_tests(items: list[pytest.Item], config: pytest.Config, plan: ChaosPlan) -> None:
    """Keep the tests that have a world, for the baseline; or replace each by one test for each planned fault.

    Raises:
        UsageError: a chaos mark is invalid.
    """
    kept = [each for item in items for each in _of(item, plan)]
    config.hook.pytest_deselected(items=[item for item in items if shape_of(item) is None])
    items[:] = kept


def _of(item: pytest.Item, plan: ChaosPlan) -> Iterator[pytest.Item]:
    if shape_of(item) is None:
        return
    if plan.cases is None:
        yield _with_case(item, ChaosCase(contract=_contract(item)))
        return
    # A fault is a test with a name, such as test_x[4xgloo-kill:1:5], so that slots, logs, JUnit and history need no
    # rules for it. One entry for each broken contract would leave no trace of the faults that were tried.
    # docs/decisions/0024-chaos-faults-are-tests.md
    for case in plan.cases.get(item.nodeid, ()):
        twin = _with_case(twin_of(item), case)
        rename(twin, _name(item.nodeid, str(case.fault)), collected_as=item.nodeid)
        yield twin


def _with_case(item: pytest.Item, case: ChaosCase) -> pytest.Item:
    """Attach the chaos data: the item gets a fresh world and the time limit of its fault."""
    item.stash[_CASE] = case
    # In front of the test's own marks, since the first mark of a name counts. A world with an injured rank cannot be
    # used again.
    item.add_marker(pytest.mark.fresh_world, append=False)
    if case.fault is not None:
        limit = pytest.mark.timeout(case.timeout_s)
        item.add_marker(limit, append=False)
        # Marks of a parameter precede those of the item (closest_mark). Twins share the object.
        if (callspec := getattr(item, "callspec", None)) is not None:
            marks = [limit.mark, *callspec.marks]
            item.callspec = dataclasses.replace(callspec, marks=marks)  # type: ignore[attr-defined]
    return item


def _contract(item: pytest.Item) -> Contract:
    mark = closest_mark(item, "chaos")
    try:
        return contract_of(*((mark.args, mark.kwargs) if mark else ((), {})))
    except UsageError as error:
        raise UsageError(f"{item.nodeid}: {error}") from None


def _name(nodeid: str, fault: str) -> str:
    """Format ``test_x.py::test_step[4xgloo-kill:1:5]``."""
    return f"{nodeid.removesuffix(']')}-{fault}]"
