"""Messages that clean contexts up are sent again when they get lost."""

from __future__ import annotations

import pytest
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc

from disttest.testing import World

from ..ranks import exchange, meet
from ..rpc.agents import agent, until, worker
from ..rpc.shim import RETRIED, faulty_options
from . import remote
from .tensors import dense
from .test_contexts import _is_known

pytestmark = [pytest.mark.world_size(4), pytest.mark.fresh_world, pytest.mark.device("cpu")]


@pytest.mark.covers("AG-95", "AG-96")
def test_contexts_are_cleaned_although_messages_get_lost(world: World) -> None:
    """With the first send of every clean-up message lost, each rank still forgets all contexts."""
    options = faulty_options(num_fail_sends=1)
    with agent(world, backend="FAULTY_TENSORPIPE", options=options):
        found = rpc.api._get_current_rpc_agent()._get_backend_options()
        assert found.num_worker_threads == 8
        assert (options.num_fail_sends, options.messages_to_fail) == (1, RETRIED)
        with dist_autograd.context() as identity:
            for rank in range(world.size):
                if rank != world.rank:
                    rpc.rpc_sync(worker(rank), remote.add, args=(dense(), dense()))
            identities = exchange(world, identity)
            assert all(map(_is_known, identities))
            meet(world)
        until(lambda: not any(map(_is_known, identities)), "contexts to be forgotten")
        meet(world)
