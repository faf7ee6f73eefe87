"""Skips what a backend can not do, by the table in ``features.py``, before any process starts."""

from __future__ import annotations

import pytest

from disttest.running.collect import shape_of

from .features import lacks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test whose world lacks a feature that the test needs."""
    for item in items:
        shape = shape_of(item)
        if shape is None:
            continue
        features = tuple(name for mark in item.iter_markers("needs") for name in mark.args)
        try:
            reason = lacks(features, shape.backend, shape.device)
        except KeyError as error:
            raise pytest.UsageError(f"{item.nodeid}: needs({error}) is no feature of features.py") from None
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
