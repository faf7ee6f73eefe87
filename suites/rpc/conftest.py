"""One agent for each rank of a world, kept from test to test; a test that leaves something behind fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from disttest.testing import World, current_world

from ..requirements import unless_available
from .shim import missing

pytest_pycollect_makemodule = unless_available(missing)


@pytest.fixture(scope="module")
def warm_agents() -> Iterator[Any]:
    """Agents for all tests of a file that run in this world."""
    from .agents import agent

    with agent(current_world()) as rpc:
        yield rpc


@pytest.fixture
def agents(warm_agents: Any, world: World) -> Iterator[World]:
    """The world, each of its ranks with an agent named ``worker<rank>``."""
    from .agents import assert_clean

    yield world
    assert_clean(world)
