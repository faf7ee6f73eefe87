"""Tests that were made of faults."""

import dataclasses

import pytest

from disttest.extras.chaos.case import ChaosCase, Contract, Fault, FaultKind
from disttest.extras.chaos.fault_items import _with_case
from disttest.runtime.controller.expand import closest_mark


@dataclasses.dataclass(frozen=True)
class CallSpec:
    """As pytest's, which has another name in each version."""

    marks: list[pytest.Mark]


class Item:
    """A parametrized test, as far as marks need it."""

    def __init__(self, *marks):
        self.callspec = CallSpec(marks=list(marks))
        self.own_markers = list(marks)
        self.stash = pytest.Stash()

    def add_marker(self, mark, *, append):
        assert not append
        self.own_markers.insert(0, mark.mark)

    def get_closest_marker(self, name):
        return next((mark for mark in self.own_markers if mark.name == name), None)


def test_the_limit_of_a_fault_precedes_that_of_a_parameter():
    item = Item(pytest.mark.timeout(1).mark)
    marks = item.callspec.marks
    fault = Fault(kind=FaultKind.KILL, rank=1, call=5)

    _with_case(item, ChaosCase(contract=Contract(), fault=fault, timeout_s=20.0))

    assert closest_mark(item, "timeout").args == (20.0,)
    assert len(marks) == 1  # shared with the tests of other faults
