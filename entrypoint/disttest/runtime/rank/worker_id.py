"""A pytest plugin for suites that take the workers of pytest-xdist for ranks.

A module, since fixtures of the session may not be methods.
"""

from __future__ import annotations

import pytest

RANK = pytest.StashKey[int]()
"""That this process is."""


@pytest.fixture(scope="session")
def worker_id(pytestconfig: pytest.Config) -> str:
    """What pytest-xdist would call the worker that is this rank."""
    return f"gw{pytestconfig.stash[RANK]}"
