"""What is asked of libraries that a thread is importing just now."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest

from disttest.host.imports import loaded, reset_compiler


@pytest.fixture
def half_imported(monkeypatch):
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("torch._dynamo", loader=None))
    module.__spec__._initializing = True
    monkeypatch.setitem(sys.modules, "torch._dynamo", module)
    return module


def test_a_module_counts_once_its_import_is_complete(half_imported):
    assert loaded("torch._dynamo") is None
    half_imported.__spec__._initializing = False
    assert loaded("torch._dynamo") is half_imported
    assert loaded("no_such_module") is None


def test_a_compiler_that_is_being_imported_has_compiled_nothing(half_imported):
    """NCCL's watchdog imports it when it has found an error, which is when a test fails."""
    reset_compiler()


def test_what_a_test_puts_in_place_of_a_module_is_no_import(monkeypatch):
    calls = []
    fake = SimpleNamespace(reset=lambda: calls.append(1))
    monkeypatch.setitem(sys.modules, "torch._dynamo", fake)
    reset_compiler()

    assert [1] == calls


def forget_graphs() -> None:
    """As ``torch._dynamo.reset`` does where there is CUDA."""
    from torch._inductor.cudagraph_trees import reset_cudagraph_trees

    reset_cudagraph_trees()


def test_graphs_that_nobody_can_have_captured_are_not_imported_to_be_forgotten(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo", SimpleNamespace(reset=forget_graphs))
    for name in [name for name in sys.modules if name.startswith("torch._inductor")]:
        monkeypatch.delitem(sys.modules, name)
    reset_compiler()

    assert not [name for name in sys.modules if name.startswith("torch._inductor")]


def test_captured_graphs_are_forgotten(monkeypatch):
    calls = []
    graphs = SimpleNamespace(reset_cudagraph_trees=lambda: calls.append(1))
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", graphs)
    monkeypatch.setitem(sys.modules, "torch._dynamo", SimpleNamespace(reset=forget_graphs))
    reset_compiler()

    assert [1] == calls
    assert sys.modules["torch._inductor.cudagraph_trees"] is graphs
