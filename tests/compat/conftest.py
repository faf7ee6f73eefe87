from __future__ import annotations

import pytest


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether every suite is run under both harnesses (``make compat``), instead of ours against the record."""
    return bool(request.config.getoption("--full"))
