"""The agents of the rpc suite, and a fresh autograd context for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from disttest.testing import World

from ..requirements import unless_available
from ..rpc.conftest import agents, warm_agents
from ..rpc.shim import missing

__all__ = ["agents", "context", "warm_agents"]

pytest_pycollect_makemodule = unless_available(missing)


@pytest.fixture
def context(agents: World) -> Iterator[int]:
    """A context on this rank; no rank leaves its own before all are done, since others look into it."""
    import torch.distributed.autograd as dist_autograd

    from ..ranks import meet

    with dist_autograd.context() as identity:
        yield identity
        meet(agents)
