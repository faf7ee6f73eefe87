from __future__ import annotations

import pytest
from lab_fixtures import lab, module_lab, nothing_left

__all__ = ["full", "lab", "module_lab", "nothing_left", "spawn"]


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether every suite is run under both harnesses (``make compat``), instead of ours against the record."""
    return bool(request.config.getoption("--full"))


@pytest.fixture
def spawn(request: pytest.FixtureRequest) -> bool:
    """Whether each rank of torch's harness is a new interpreter, as torch has it (``--spawn``)."""
    return bool(request.config.getoption("--spawn"))
