"""A pytest plugin for suites that use the workers of pytest-xdist as ranks.

It is a module, because session fixtures cannot be methods.
"""

from __future__ import annotations

import pytest

from disttest.options.environment import environment


@pytest.fixture(scope="session")
def worker_id() -> str:
    """Return the name that pytest-xdist would give to the worker that is this rank."""
    return f"gw{environment()['RANK']}"
