"""Who is handed on once it is loaded, and what Python says of threads where we fork."""

import os
import sys
import types
import warnings

import pytest

from disttest.host import cuda_touch
from disttest.host.cuda_answers import answer_for_numba
from disttest.host.process import fork_here


@pytest.fixture
def watched(monkeypatch, tmp_path):
    """What is handed on of modules that this process imports."""
    found = {}
    (tmp_path / "a_module_of_the_test.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(cuda_touch, "_wrap", lambda torch: None)

    def watch(name):
        cuda_touch.watch_cuda({name: lambda module: found.update({name: module})})
        return found

    yield watch
    sys.modules.pop("a_module_of_the_test", None)


def test_a_module_is_handed_on_when_it_has_been_executed(watched):
    found = watched("a_module_of_the_test")

    assert found == {}
    import a_module_of_the_test

    assert found == {"a_module_of_the_test": a_module_of_the_test}
    assert found["a_module_of_the_test"].VALUE == 1


def test_one_that_is_loaded_is_handed_on_at_once(watched):
    assert watched("json") == {"json": sys.modules["json"]}


def test_one_whose_import_is_forbidden_is_not(watched, monkeypatch):
    monkeypatch.setitem(sys.modules, "forbidden_by_the_test", None)

    assert watched("forbidden_by_the_test") == {}


def test_a_numba_that_cannot_be_asked_stays_as_it_is():
    module = types.ModuleType("numba.cuda")
    answer_for_numba(module)

    assert not hasattr(module, "is_available")


def wrapped(monkeypatch, *, cuda, driver):
    """A torch built for these GPUs, on a machine with or without NVIDIA's driver, as it is while ranks are forked."""
    torch = types.SimpleNamespace(
        __file__="torch/__init__.py",
        version=types.SimpleNamespace(cuda=cuda),
        _C=types.SimpleNamespace(_cuda_getDeviceCount=lambda: 4),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(cuda_touch, "_originals", {})
    monkeypatch.setattr(cuda_touch, "_touched", "")
    monkeypatch.setattr(cuda_touch, "_DRIVER", "libc.so.6" if driver else "libnobody.so.1")
    cuda_touch._wrap(torch)
    return torch


def test_without_a_driver_there_are_no_gpus_and_nothing_is_asked(monkeypatch):
    torch = wrapped(monkeypatch, cuda="13.0", driver=False)

    assert torch._C._cuda_getDeviceCount() == 0
    assert cuda_touch.cuda_touched() == ""


@pytest.mark.parametrize(("cuda", "driver"), [("13.0", True), (None, False)], ids=["NVIDIA", "AMD"])
def test_where_there_may_be_gpus_they_are_counted_and_that_is_noted(monkeypatch, cuda, driver):
    torch = wrapped(monkeypatch, cuda=cuda, driver=driver)

    assert torch._C._cuda_getDeviceCount() == 4
    assert cuda_touch.cuda_touched() != ""


def test_a_driver_that_nothing_has_loaded_is_not_initialised(monkeypatch):
    monkeypatch.setattr(cuda_touch, "_DRIVER", "libnobody.so.1")

    assert not cuda_touch.is_driver_initialised()


def test_a_library_of_that_name_that_is_no_driver_is_not(monkeypatch):
    monkeypatch.setattr(cuda_touch, "_DRIVER", "libc.so.6")

    assert not cuda_touch.is_driver_initialised()


def test_where_warnings_are_errors_a_fork_beside_threads_does_not_raise(monkeypatch):
    """Python 3.12 warns after it has forked: the child would be nobody's."""

    def fork():
        warnings.warn("This process is multi-threaded", DeprecationWarning, stacklevel=2)
        return os.getpid()

    monkeypatch.setattr(os, "fork", fork)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        child = fork_here()

    assert child.pid == os.getpid()
    child.close()
