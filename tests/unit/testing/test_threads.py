"""Threads as ranks, with a torch whose own threaded world is not whole."""

import torch.distributed as dist
from torch.testing._internal.distributed import multi_threaded_pg as threaded

from disttest.testing.threads import spawn_threads_and_init_comms


def test_groups_are_destroyed_where_torchs_world_lacks_what_that_goes_through(monkeypatch):
    monkeypatch.delattr(threaded.ThreadLocalWorld, "comms", raising=False)  # as in torch 2.11
    seen = []

    @spawn_threads_and_init_comms(world_size=2)
    def body(_self):
        seen.append(dist.get_world_size())

    body(None)

    assert [2, 2] == seen
    assert not dist.is_initialized()
