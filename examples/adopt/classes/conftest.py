"""Tests of classes that say so run in ranks (see harness.py); their fixtures are set up in the process of the suite."""

import inspect


def pytest_pyfunc_call(pyfuncitem):
    if not getattr(pyfuncitem.cls, "is_dist_test", False):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    pyfuncitem.instance.launch(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in names})
    return True
