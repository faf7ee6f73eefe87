"""A pytest plugin for suites that take the workers of pytest-xdist for ranks.

A module, since fixtures of the session may not be methods.
"""

from __future__ import annotations

import pytest

from disttest.options.environment import environment


@pytest.fixture(scope="session")
def worker_id() -> str:
    """The name that pytest-xdist would give to the worker that is this rank."""
    return f"gw{environment()['RANK']}"
