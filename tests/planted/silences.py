"""Programs that do something wrong when a peer is silent: it was stopped, or lives on after an error."""

import time

import pytest
import torch
import torch.distributed as dist
from planted import breaks


@breaks("silent")
def test_a_rank_skips_what_fails(world):
    """Its peer's next call meets the one that it has skipped, as long as there is one."""
    for _ in range(2):
        try:
            dist.all_reduce(torch.ones(2))
        except RuntimeError as error:
            print("skipped:", error)


@breaks("hung")
def test_waits_for_a_key_without_limit(world):
    store = dist.distributed_c10d._get_default_store()
    try:
        dist.all_reduce(torch.ones(2))
    finally:
        store.set(f"done{world.rank}", "")
        while not store.check([f"done{1 - world.rank}"]):
            time.sleep(0.01)


@breaks("failed")
@pytest.mark.chaos(recover=True)
def test_recovers_from_broken_connections_only(world, record_property):
    total = torch.ones(2)
    try:
        dist.all_reduce(total)
    except RuntimeError as error:
        if "onnection" not in str(error):
            raise
    record_property("shape", list(total.shape))
