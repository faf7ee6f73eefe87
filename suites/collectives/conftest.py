"""The groups that most tests run over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from disttest.testing.world import World

from ..ranks import leave_together, subgroup
from .data import Members, all_of

__all__ = ["leave_together", "members"]


@pytest.fixture(params=["world", "full", "part"])
def members(request: pytest.FixtureRequest, world: World) -> Iterator[Members]:
    """The default group, a new group of all ranks, and one that leaves rank 0 (and any after rank 2) out."""
    if request.param == "world":
        yield all_of(world)
        return
    ranks = list(range(world.size)) if request.param == "full" else list(range(1, min(world.size, 3)))
    if not ranks:
        pytest.skip("a group without rank 0 needs a second rank")
    with subgroup(ranks) as group:
        yield Members(ranks, group, world)
