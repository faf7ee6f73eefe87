"""Copies of tests for their worlds."""

import unittest

import pytest
from _pytest import unittest as classes

from disttest.runtime.controller import expand


class Case(unittest.TestCase):
    __test__ = False

    def test_x(self):
        pass


@pytest.mark.skipif(not hasattr(pytest.Item, "id"), reason="pytest compares ids as texts")
def test_the_id_of_a_method_equals_the_one_that_pytest_reads_from_its_cache(request):
    module = request.node.getparent(pytest.Module)
    owner = classes.UnitTestCase.from_parent(module, name="Case", obj=Case)

    copy = expand._method(classes.TestCaseFunction.from_parent(owner, name="test_x"), "2xgloo")

    assert copy.nodeid.endswith("::Case::test_x[2xgloo]")
    assert copy.id == type(copy.id).parse(copy.nodeid)
