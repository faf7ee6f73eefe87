"""Tests of classes that say so run in ranks (see harness.py); their fixtures are set up in the process of the suite."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if getattr(item.cls, "is_dist_test", False):
        item.cls()(item._request)
        item.runtest = lambda: None  # it has run
