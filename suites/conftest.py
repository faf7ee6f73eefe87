"""Decides what a backend can not do, by the table in ``features.py``, before any process starts."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from disttest.planning.options import resolve_options
from disttest.running.collect import shape_of

from .features import lacks


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip each test whose world lacks a feature that the test needs.

    Raises:
        pytest.UsageError: a backend was asked for by name and is not built; a test needs an unknown feature.
    """
    asked_for = resolve_options({"backend": config.getoption("disttest_backend")}).backend
    for item in items:
        shape = shape_of(item)
        if shape is None:
            continue
        built = dist.is_backend_available(shape.backend)
        if not built and shape.backend in asked_for:
            raise pytest.UsageError(
                f"backend {shape.backend} was asked for, and torch {torch.__version__} has none"
            )
        reason = (
            _lacking(item, shape.backend, shape.device) if built else f"torch has no backend {shape.backend}"
        )
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _lacking(item: pytest.Item, backend: str, device: str) -> str:
    features = tuple(name for mark in item.iter_markers("needs") for name in mark.args)
    try:
        return lacks(features, backend, device)
    except KeyError as error:
        raise pytest.UsageError(f"{item.nodeid}: needs({error}) is no feature of features.py") from None
