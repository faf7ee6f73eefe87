"""Skip tests whose backend lacks a feature, by the table in ``features.py``, before any process starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from disttest.runtime.controller.expand import shape_of

from .features import lacks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip each test whose world lacks a feature that the test needs.

    Raises:
        pytest.UsageError: a test needs an unknown feature.
    """
    for item in items:
        shape = shape_of(item)
        if shape is not None and (reason := _lacking(item, shape.backend, shape.device)):
            item.add_marker(pytest.mark.skip(reason=reason))


def _lacking(item: pytest.Item, backend: str, device: str) -> str:
    features = tuple(name for mark in item.iter_markers("needs") for name in mark.args)
    try:
        return lacks(features, backend, device)
    except KeyError as error:
        raise pytest.UsageError(f"{item.nodeid}: needs({error}) is no feature of features.py") from None


@pytest.fixture(params=["OFF", "INFO", "DETAIL"])
def debug_level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One of torch's levels of debugging, in force during the test."""
    import torch.distributed as dist

    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", request.param)
    dist.set_debug_level_from_env()
    yield request.param
    monkeypatch.undo()
    dist.set_debug_level_from_env()
