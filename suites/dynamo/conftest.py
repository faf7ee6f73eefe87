"""Dynamo as new for each test; its counters read from zero."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..requirements import unless_available
from .shim import missing

pytest_pycollect_makemodule = unless_available(missing)


def pytest_configure(config: pytest.Config) -> None:
    """The one mark of this suite alone."""
    config.addinivalue_line("markers", "slow: takes a minute; leave out with -m 'not slow'")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """No compiled code and no counts of an earlier test."""
    from .shim import reset

    reset()
    yield
    reset()
